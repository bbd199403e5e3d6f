"""Compiler caches of a real program: captured, captured again by a worker, restored, used, and refused elsewhere."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aot.capture.pins import effective_environment, pins
from aot.client.connect import open_client
from aot.environment import observe_environment
from aot.pipeline.profiles import observe_profiles
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Name, Reference
from aot.schema.profile import Profile
from aot.schema.wire.workers import Outcome, Scope
from registry.db.fleet_models import ReceiptRow
from registry.db.models import BundleRow
from tests.commands import Ran, Shell, a_shell, end
from worker.run import Bench, Ended, run_build

PROGRAM = Path(__file__).with_name("broken_graphs.py")
COMMAND = ("python", PROGRAM.name)
LONG = 400.0


@dataclass(frozen=True)
class Fleet:
    """A registry with one live capture of the program, made by a worker of this machine."""

    shell: Shell
    tree: Path
    scratch: Path
    pushed: dict[str, Any]

    def run(self, *arguments: str, **environ: str) -> Ran:
        return end(self.shell.with_environ(**environ).start("run", *arguments, cwd=self.tree), seconds=LONG)

    def manifest(self, reference: str) -> Manifest:
        client = open_client(self.shell.url, self.shell.service.admin)
        return decode_manifest(client.resolve(Reference.parse(reference))[0].manifest.encode())


def own_profile() -> Profile:
    return observe_profiles(observe_environment())[0]


def run_worker(shell: Shell, profile: Profile, scratch: Path) -> Ended:
    bench = Bench(
        name=Name("worker-1"),
        client=open_client(shell.url, shell.service.token(Scope.CLAIM)),
        profiles=(profile,),
        scratch=scratch / "scratch",
        shared_caches=scratch / "toolchain",
        sandbox=None,
        trust_sources=frozenset({"default"}),
        stopping=threading.Event(),
    )
    return run_build(bench)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    scratch = tmp_path_factory.mktemp("capture")
    tree = scratch / "tree"
    tree.mkdir()
    (tree / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    profile = own_profile()
    with a_shell(scratch) as shell:
        shell.service.register(profile)
        place = Path(sys.executable).parent
        shell = shell.with_environ(PATH=f"{place}:/usr/bin:/bin", AOT_PROFILE=None, PYTHONDONTWRITEBYTECODE="1")
        shell = shell.with_environ(TORCHINDUCTOR_VEC_ISA_OK="1")  # spares half a minute of trying the compiler
        arguments = ("--once", "--source", str(tree), "--profile", str(profile.name), "--push", "--json")
        captured = end(shell.start("capture", "broken:v1", *arguments, "--", *COMMAND, cwd=tree), seconds=LONG)
        assert captured.code == 0, captured.err
        assert captured.json["state"] == "pending", captured.err
        assert shell.aot("run", "broken:v1", "--", "true").err.startswith("aot: nothing restored:")
        assert run_worker(shell, profile, scratch) is Ended.PUBLISHED, shell.aot("ls", "--builds").out
        yield Fleet(shell, tree, scratch, captured.json)


@pytest.mark.torch
def test_what_goes_live_is_what_the_worker_wrote(fleet: Fleet) -> None:
    live = fleet.manifest("broken:v1")
    assert live.qualification.numerics == "captured again"
    assert live.artifacts[0].facts["graphs"] == "2"
    assert {"isa", "python", "torch", "machine", "libc"} <= {guard.kind for guard in live.artifacts[0].host_guards}
    assert float(live.artifacts[0].facts["second_seconds"]) < float(live.artifacts[0].facts["first_seconds"])


@pytest.mark.torch
def test_a_command_runs_on_the_bundle_and_compiles_nothing(fleet: Fleet) -> None:
    ran = fleet.run("broken:v1", "--", *COMMAND)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("error ") and float(ran.out.split()[1]) < 1e-5
    assert "aot: 2 graphs: 2 from the bundle, 0 compiled, saved ~" in ran.err
    with fleet.shell.service.deps.sessions.reading() as session:
        receipts = session.scalars(select(ReceiptRow).where(ReceiptRow.outcome == Outcome.COMPILED)).all()
    assert receipts[0].counters["hits"] == 2 and receipts[0].counters["misses"] == 0
    assert receipts[0].counters["compiled_files"] == 0


@pytest.mark.torch
@pytest.mark.parametrize("imported", ["torch, torch._inductor.config, ", ""], ids=["after torch", "before torch"])
def test_a_program_warms_itself_before_or_after_it_imports_torch(fleet: Fleet, imported: str) -> None:
    code = (
        f"import logging, runpy, sys, {imported}aot; logging.basicConfig(level=logging.INFO)\n"
        "assert aot.warm('broken:v1').graphs == 2\n"
        f"assert ('torch' in sys.modules) is {bool(imported)}\n"
        f"runpy.run_path({PROGRAM.name!r}, run_name='__main__')"
    )
    # The registry is gone, and the node has everything: some command of it was here before.
    assert fleet.run("broken:v1", "--", "true").code == 0
    environ = {**fleet.shell.environ, "AOT_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=fleet.tree, env=environ, capture_output=True, text=True, timeout=LONG
    )
    assert ran.returncode == 0, ran.stderr
    assert "aot: 2 graphs: 2 from the bundle, 0 compiled" in ran.stderr


def test_another_vector_width_is_refused_and_the_command_starts(fleet: Fleet) -> None:
    """The same machine told to use narrower vectors: torch would take the entries and compute something else."""
    ran = fleet.run("broken:v1", "--", "python", "-S", "-c", "print('started')", ATEN_CPU_CAPABILITY="default")
    assert (ran.code, ran.out) == (0, "started\n")
    assert "the cache entries are made for" in ran.err and "this host is x86-64" in ran.err


@pytest.mark.torch
@pytest.mark.skipif("avx512f" not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU of two vector widths")
def test_entries_of_another_width_are_not_found_even_where_they_lie(fleet: Fleet) -> None:
    """Torch's own keys take them: the error is above 1 then. Ours have the width in them, so it compiles its own."""
    fleet.run("broken:v1", "--", "true")
    [directory] = [place for place in (fleet.shell.home / "cache" / "captures").iterdir() if place.is_dir()]
    environ = {**fleet.shell.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    changes = pins(effective_environment(observe_environment(), environ), directory, environ)
    ran = subprocess.run(
        COMMAND, cwd=fleet.tree, env={**environ, **changes}, capture_output=True, text=True, timeout=LONG
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split()[1]) < 1e-5


def test_a_command_keeps_code_and_input_and_starts_without_a_registry(fleet: Fleet) -> None:
    gone = {"AOT_URL": "http://127.0.0.1:9", "AOT_CACHE_DIR": str(fleet.scratch / "empty")}
    ran = fleet.run("broken:v1", "--", "python", "-S", "-c", "import sys; print('went'); sys.exit(9)", **gone)
    assert (ran.code, ran.out) == (9, "went\n")
    assert "aot: nothing restored:" in ran.err
    # And a disk that takes nothing.
    full = {"AOT_CACHE_DIR": "/proc/self/none"}
    ran = fleet.run("broken:v1", "--", "python", "-S", "-c", "print('went')", **full)
    assert (ran.code, ran.out) == (0, "went\n") and "aot: nothing restored:" in ran.err


def test_entries_that_are_not_used_are_told_loudly_with_what_differs(fleet: Fleet) -> None:
    ran = fleet.run("broken:v1", "--", "python", "-S", "-c", WRITER, OMP_NUM_THREADS="7")
    assert "WARNING: 2 graphs were restored, and none of them was used" in ran.err
    assert "OMP_NUM_THREADS was not set, is 7" in ran.err
    with fleet.shell.service.deps.sessions.reading() as session:
        receipts = session.scalars(select(ReceiptRow).where(ReceiptRow.outcome == Outcome.EAGER)).all()
    (reasons,) = [row.reasons for row in receipts if "2 graphs were restored, and none of them was used" in row.reasons]
    assert "OMP_NUM_THREADS was not set, is 7" in reasons


WRITER = """
import os, pathlib
place = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "fxgraph/zz/zzkey"
place.mkdir(parents=True, exist_ok=True)
(place / str(os.getpid())).write_text("a graph")
"""


def test_what_was_compiled_is_written_back_as_a_union(fleet: Fleet) -> None:
    before = fleet.manifest("broken:v1")
    ran = fleet.run("broken:v1", "--write-back", "--", "python", "-S", "-c", WRITER)
    assert "aot: written back: sha256:" in ran.err, ran.err
    digest = ran.err.split("written back: ")[1].split(" ")[0]
    with fleet.shell.service.deps.sessions.reading() as session:
        [row] = session.scalars(select(BundleRow).where(BundleRow.digest == Digest(digest))).all()
        union = decode_manifest(row.manifest if isinstance(row.manifest, bytes) else row.manifest.encode())
    assert set(before.artifacts[0].files) < set(union.artifacts[0].files)
    assert union.qualification.numerics == ""
    # Nobody certifies himself: the tag still stands for what the worker made.
    assert fleet.manifest("broken:v1") == before
