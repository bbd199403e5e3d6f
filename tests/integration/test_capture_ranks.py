"""Captures of several ranks through the command line, a registry and a worker, and what a second capture uploads."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from registry.db.models import BlobRow
from tests.commands import Ran, Shell, a_shell, end
from tests.integration.test_capture import own_profile, run_worker
from worker.run import Ended

# As torch does, it keeps with a graph where and how fast it was compiled.
PROGRAM = """
import os, pathlib, pickle, tempfile, time
caches = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp()
for number, layer in enumerate({layers}):
    place = pathlib.Path(caches) / "fxgraph" / "ab" / (layer + str(number))
    if place.exists():
        [found.read_bytes() for found in place.iterdir()]
        continue
    place.mkdir(parents=True)
    graph = {{
        "source_code": layer * 5000 + str(number),
        "runnable_graph_str": str(place),
        "_time_taken_ns": 2 * 10**9 + time.time_ns() % 10**9,
    }}
    (place / str(os.getpid())).write_bytes(pickle.dumps(graph))
"""
# A stand-in for torch's launcher: the command line of it, and a rank after the other.
LAUNCHER = """#!{python} -S
import runpy, sys
for rank in range(int(sys.argv[2])):
    runpy.run_path(sys.argv[3])
"""
TWO = ("./torchrun", "--nproc-per-node", "2", "program.py")


def write_program(tree: Path, *layers: str) -> None:
    (tree / "program.py").write_text(PROGRAM.format(layers=layers))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    scratch = tmp_path_factory.mktemp("ranks")
    tree = scratch / "tree"
    tree.mkdir()
    write_program(tree, *["gelu"] * 5)
    (tree / "torchrun").write_text(LAUNCHER.format(python=sys.executable))
    (tree / "torchrun").chmod(0o755)
    with a_shell(scratch) as shell:
        shell.service.register(own_profile())
        shell = shell.with_environ(AOT_PROFILE=None, PYTHONDONTWRITEBYTECODE="1", TREE=str(tree), TMPDIR=str(scratch))
        capture(shell, "trained:v1")
        assert run_worker(shell, own_profile(), scratch) is Ended.PUBLISHED, shell.aot("ls", "--builds").out
        yield shell


def capture(shell: Shell, name: str) -> None:
    tree = Path(shell.environ["TREE"])
    arguments = ("capture", name, "--once", "--source", str(tree), "--profile", str(own_profile().name), "--push")
    captured = end(shell.start(*arguments, "--", *TWO, cwd=tree))
    assert captured.code == 0, captured.err


def run(shell: Shell, *command: str) -> Ran:
    return end(shell.start("run", "trained:v1", "--", *command, cwd=Path(shell.environ["TREE"])))


def test_two_ranks_run_on_what_two_ranks_have_compiled(shell: Shell) -> None:
    ran = run(shell, *TWO)
    assert ran.code == 0 and "aot: 5 graphs: 5 from the bundle, 0 compiled" in ran.err, ran.err


@pytest.mark.parametrize(
    ("command", "found"),
    [(("./torchrun", "--nproc-per-node=4", "4", "program.py"), 4), ((sys.executable, "-S", "program.py"), 1)],
    ids=["four", "one"],
)
def test_another_number_of_ranks_is_told_why_and_starts(shell: Shell, command: tuple[str, ...], found: int) -> None:
    ran = run(shell, *command)
    assert ran.code == 0, ran.err
    assert "aot: nothing restored:" in ran.err
    assert f"compiled for 2 processes, this is one of {found}" in ran.err


def test_a_second_capture_uploads_what_the_changed_layer_is_in(shell: Shell) -> None:
    def stored() -> int:
        with shell.service.deps.sessions.reading() as session:
            return session.scalar(select(func.coalesce(func.sum(BlobRow.size_bytes), 0))) or 0

    before = stored()
    write_program(Path(shell.environ["TREE"]), *["gelu"] * 4, "silu")
    capture(shell, "trained:v2")
    assert 0 < stored() - before <= 0.3 * 5 * len("gelu" * 5000)
