"""A command on compiler caches: how it runs and ends, and what a run says of their use."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aot.capture.account import account
from aot.capture.capture import capture
from aot.capture.collect import list_paths
from aot.capture.command import run_command
from aot.capture.listing import directories_of
from aot.capture.prepare import Prepared
from aot.capture.run import run_on
from aot.capture.watch import OpenWatch
from aot.cli.capture import pushed_lines, split_arguments, starts_elsewhere
from aot.errors import InvalidInput
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply
from tests.caches import GRAPH, caches, host, write

ROOT = Path(__file__).parents[2]


def test_opened_files_are_seen_from_outside(tmp_path: Path) -> None:
    caches(tmp_path)
    watch = OpenWatch(tmp_path)
    assert watch.works
    subprocess.run([sys.executable, "-S", "-c", f"open({str(tmp_path / GRAPH)!r}).read()"], check=True)
    assert watch.finish() == {GRAPH}


def test_a_graph_with_a_new_entry_beside_the_opened_one_was_compiled(tmp_path: Path) -> None:
    before = list_paths(caches(tmp_path))
    write(
        tmp_path, **{"inductor/fxgraph/ab/key/two": b"", "inductor/fxgraph/cd/new/one": b"", "inductor/ef/n.cpp": b""}
    )
    os.utime(tmp_path / "inductor/ef/n.cpp", (100, 100))
    write(tmp_path, **{"inductor/ef/n.so": b""})
    os.utime(tmp_path / "inductor/ef/n.so", (107, 107))
    counted = account(
        tmp_path,
        bundle=before,
        before=before,
        after=list_paths(tmp_path),
        opened=frozenset({GRAPH}),
        seconds=9.0,
        saved_seconds=80.0,
    )
    assert (counted.restored, counted.found, counted.compiled, counted.files) == (1, 0, 2, 1)
    assert counted.compiler_seconds == 7.0 and counted.unused
    assert counted.line() == "2 graphs: 0 from the bundle, 2 compiled in 7 s of compilers"
    assert counted.counters == {
        "graphs": 2,
        "hits": 0,
        "misses": 2,
        "compiled_files": 1,
        "compiler_milliseconds": 7000,
    }


def test_a_run_on_the_bundle_alone_says_what_it_saved(tmp_path: Path) -> None:
    paths = list_paths(caches(tmp_path))
    counted = account(
        tmp_path, bundle=paths, before=paths, after=paths, opened=frozenset({GRAPH}), seconds=9.0, saved_seconds=87.2
    )
    assert counted.line() == "1 graphs: 1 from the bundle, 0 compiled, saved ~87 s" and not counted.unused


def test_graphs_of_earlier_runs_on_the_node_are_not_the_bundles(tmp_path: Path) -> None:
    bundle = list_paths(caches(tmp_path))
    write(tmp_path, **{"inductor/fxgraph/cd/new/one": b""})
    paths = list_paths(tmp_path)
    opened = frozenset({"inductor/fxgraph/cd/new/one"})
    counted = account(tmp_path, bundle=bundle, before=paths, after=paths, opened=opened, seconds=9.0)
    assert counted.line() == "1 graphs: 0 from the bundle, 1 from earlier runs here, 0 compiled"
    assert (counted.restored, counted.earlier, counted.unused) == (1, 1, True)


def test_a_run_that_could_not_be_watched_claims_no_hits(tmp_path: Path) -> None:
    paths = list_paths(caches(tmp_path))
    counted = account(tmp_path, bundle=paths, before=paths, after=paths, opened=None, seconds=9.0)
    assert counted.found is None and "hits" not in counted.counters and "unknown" in counted.line()


def test_a_command_keeps_its_exit_code_and_its_environment(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(int(os.environ['CODE']))"
    assert run_command([sys.executable, "-S", "-c", code], environ={"CODE": "7"}).code == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command([sys.executable, "-S", "-c", killed], environ={}).code == 128 + signal.SIGKILL
    with pytest.raises(InvalidInput, match="cannot be run"):
        run_command([str(tmp_path / "none")], environ={})


OUTER = """
import sys
from aot.capture.command import run_command
sys.exit(run_command([sys.executable, "-S", "-c", sys.argv[1]], environ={}).code)
"""

INNER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("ready", flush=True)
time.sleep(30)
"""


def test_a_signal_reaches_the_command() -> None:
    with subprocess.Popen([sys.executable, "-c", OUTER, INNER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 42


WRITER = """
import os, pathlib, sys
place = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for name in sys.argv[1:]:
    path = place / name
    if path.exists():
        if "rejected" not in name:
            path.read_bytes()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
"""


def test_a_second_run_decides_what_is_kept(tmp_path: Path) -> None:
    names = ("fxgraph/ab/key/one", "triton/0/WINNER/k.cubin", "triton/0/rejected/k.cubin")
    made = capture(
        [sys.executable, "-S", "-c", WRITER, *names], environ={"PATH": "/usr/bin"}, effective=host(), scratch=tmp_path
    )
    assert [entry.path for entry in made.collected.entries] == [f"inductor/{name}" for name in names[:2]]
    assert made.left_out == 1 and made.second is not None
    assert (made.second.found, made.second.compiled) == (1, 0)


def test_a_capture_of_nothing_and_of_a_failure_is_refused(tmp_path: Path) -> None:
    for number, (code, text) in enumerate((("pass", "left nothing"), ("raise SystemExit(3)", "ended with 3"))):
        with pytest.raises(InvalidInput, match=text):
            capture(
                [sys.executable, "-S", "-c", code],
                environ={"PATH": "/usr/bin"},
                effective=host(),
                scratch=tmp_path / str(number),
            )


def test_a_command_that_the_terminal_interrupts_interrupts_its_capture(tmp_path: Path) -> None:
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)"
    with pytest.raises(KeyboardInterrupt):
        capture([sys.executable, "-S", "-c", code], environ={"PATH": "/usr/bin"}, effective=host(), scratch=tmp_path)


def test_warm_imports_no_torch_and_goes_on_without_a_registry(tmp_path: Path) -> None:
    code = (
        "import sys, aot; found = aot.warm('mini:v1')\n"
        "assert 'torch' not in sys.modules and found.bundle is None and found.graphs == 0\n"
        "print(found.reasons[0])"
    )
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "AOT_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "there is no registry to ask" in ran.stdout and "restores no compiler caches of" in ran.stderr
    raising = subprocess.run(
        [sys.executable, "-c", code], env={**environ, "AOT_FALLBACK": "raise"}, capture_output=True, text=True
    )
    assert "NoCompatibleArtifact" in raising.stderr


def test_a_lock_that_is_not_there_is_no_reason_to_run_unpinned(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "aot.cli",
        "run",
        "mini:v1",
        "--lock",
        str(tmp_path / "no.lock"),
        "--",
        "echo",
        "x",
    ]
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "x\n") and "there is no lock file" in ran.stderr


@pytest.mark.parametrize(
    ("reference", "command", "expected"),
    [
        ("mini:v1", ["python", "x.py"], ("mini:v1", ["python", "x.py"])),
        ("ours/mini:v1", ["true"], ("ours/mini:v1", ["true"])),
    ],
)
def test_a_reference_is_told_from_a_command(reference: str, command: list[str], expected: object) -> None:
    assert split_arguments(reference, command, lock=None) == expected


def test_a_command_without_a_name_and_a_name_without_a_command_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"wanted a reference name:tag before the command.*found none"):
        split_arguments("python", ["x.py"], lock=None)
    with pytest.raises(InvalidInput, match="no command"):
        split_arguments("mini:v1", [], lock=None)


def test_a_watch_goes_on_where_a_directory_has_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{GRAPH: b"graph"})
    walked = list(directories_of(tmp_path))
    gone = ("gone", tmp_path / "gone")
    monkeypatch.setattr("aot.capture.watch.directories_of", lambda _: iter([walked[0], gone, *walked[1:]]))
    watch = OpenWatch(tmp_path)
    assert watch.works
    (tmp_path / GRAPH).read_bytes()
    assert watch.finish() == {GRAPH}


def test_a_directory_that_cannot_be_listed_costs_neither_the_start_nor_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Path) -> frozenset[str]:
        raise OSError("stale")

    monkeypatch.setattr("aot.capture.run.list_paths", lost)
    prepared = Prepared(Reference.parse("default/mini:v1"), host(), write(tmp_path / "place", **{GRAPH: b"graph"}))
    ran = run_on(prepared, ["/bin/sh", "-c", "exit 9"], environ={})
    assert (ran.code, ran.account) == (9, None)


def test_a_command_that_starts_outside_its_tree_is_told_where_a_worker_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    assert starts_elsewhere(Path()) == ""
    assert str(tmp_path / "src") in starts_elsewhere(Path("src"))


def test_a_pending_push_is_told_with_how_to_follow_it() -> None:
    reply = PublishReply(bundle=Digest("sha256:" + 64 * "0"), state=BundleState.PENDING, build="01a2")
    (line,) = pushed_lines(reply)
    assert line.startswith("  pending: build 01a2 captures it again") and "`aot wait 01a2`" in line
    assert "aot wait" not in pushed_lines(PublishReply(bundle=reply.bundle, state=BundleState.LIVE, build="01a2"))[0]
