"""A limit on memory promises none: it is lowered to what the cgroup allows or the host has, and that is told."""

import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aot.compile.job import OUTCOME_FILE, CompileOutcome
from aot.compile.run import explain_exit, read_outcome
from aot.environment import Host
from aot.errors import BackendFailed, CompileOutOfMemory
from aot.qualify import children
from aot.qualify.children import Proving, Watched
from aot.qualify.job import JOB_FILE, ProofJob, Task
from aot.sandbox import ChildExit, ExitKind, Room, RoomOf, SandboxKind, capped, find_room, supervise
from aot.sandbox.room import BESIDE_BYTES, find_oom_kills
from aot.sandbox.tree import is_group_shared
from aot.schema.codec import decode, encode
from aot.schema.recipe import Recipe
from aot.schema.report import Phase
from aot.schema.spec import Limits
from aot.schema.wire.errors import ErrorBody
from tests.builders import a_profile
from tests.sandbox_children import EACH_KIND, MIB, run_python, some_limits

GIB = 1 << 30
V2 = {
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/proc/self/cgroup": "0::/pods/worker\n",
    "/sys/fs/cgroup/memory.max": "max\n",
}
V1 = {
    "/proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "/proc/self/cgroup": "4:memory:/pods/worker\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
HOST = {"/proc/meminfo": "MemTotal:       16777216 kB\n"}


def a_tree(place: Path, *trees: Mapping[str, str]) -> Host:
    for path, content in {name: text for tree in trees for name, text in tree.items()}.items():
        (place / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (place / path[1:]).write_text(content)
    return Host(root=place)


@pytest.mark.parametrize(
    ("group", "file"),
    [
        (V2, "/sys/fs/cgroup/pods/worker/memory.max"),
        (V2, "/sys/fs/cgroup/pods/memory.max"),
        (V1, "/sys/fs/cgroup/memory/pods/worker/memory.limit_in_bytes"),
        (V1, "/sys/fs/cgroup/memory/pods/memory.limit_in_bytes"),
    ],
    ids=["v2", "v2 above", "v1", "v1 above"],
)
def test_a_limit_above_the_cgroups_is_lowered_to_what_it_has_for_a_child(
    tmp_path: Path, group: Mapping[str, str], file: str
) -> None:
    room = find_room(a_tree(tmp_path, HOST, group, {file: f"{8 * GIB}\n"}))
    assert room == Room(8 * GIB, RoomOf.CGROUP)
    assert capped(62 * GIB, room) == 8 * GIB - BESIDE_BYTES
    assert capped(4 * GIB, room) == 4 * GIB


def test_without_a_cgroups_limit_there_is_what_the_host_has(tmp_path: Path) -> None:
    assert find_room(a_tree(tmp_path / "v2", HOST, V2)) == Room(16 * GIB, RoomOf.HOST)
    assert find_room(a_tree(tmp_path / "v1", HOST, V1)) == Room(16 * GIB, RoomOf.HOST)
    above = {"/sys/fs/cgroup/pods/worker/memory.max": str(64 * GIB)}
    assert find_room(a_tree(tmp_path / "above", HOST, V2, above)) == Room(16 * GIB, RoomOf.HOST)
    assert find_room(a_tree(tmp_path / "none")) is None
    assert capped(62 * GIB, None) == 62 * GIB


def test_in_a_small_cgroup_most_is_the_childs() -> None:
    assert Room(GIB, RoomOf.CGROUP).child_bytes == GIB - GIB // 8


@EACH_KIND
def test_a_child_is_ended_at_what_there_is_before_the_kernel_ends_it(kind: SandboxKind) -> None:
    code = "blocks = []\nwhile True: blocks.append(bytearray(b'1' * (1 << 20)))"
    room = Room(128 * MIB, RoomOf.CGROUP)
    end = run_python(code, kind=kind, limits=some_limits(memory_bytes=64 * GIB), room=room)
    assert (end.kind, end.room, end.memory_limit_bytes) == (ExitKind.OUT_OF_MEMORY, room, 64 * GIB)
    assert 112 * MIB < end.max_rss_bytes < 4 * GIB
    assert end.describe() == (
        f"out of memory: it needs more than the {112 * MIB} bytes of memory that there are for it: "
        f"its limit was {64 * GIB}, and the cgroup's memory limit is {128 * MIB} bytes"
    )


def test_files_that_a_child_maps_take_none_of_its_room(tmp_path: Path) -> None:
    """The kernel takes their pages back: with given weights, or frozen ones in the code, they are many."""
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    large = Path(torch.origin).parent / "lib/libtorch_cpu.so"
    assert large.stat().st_size > 192 * MIB
    code = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    sum(mapped[at] for at in range(0, len(mapped), 4096))
    time.sleep(1.5)
"""
    limits = some_limits(memory_bytes=64 * GIB)
    end = run_python(code, str(large), kind=SandboxKind.PROCESS, limits=limits, room=Room(128 * MIB, RoomOf.CGROUP))
    assert end.kind is ExitKind.EXITED and end.max_rss_bytes > 160 * MIB, end.describe()
    end = run_python(code, str(large), kind=SandboxKind.PROCESS, limits=some_limits(memory_bytes=128 * MIB))
    assert end.kind is ExitKind.OUT_OF_MEMORY


def test_what_forks_share_takes_room_once() -> None:
    code = """
import os, time
block = b"1" * (80 << 20)
os.fork() and os.fork()
time.sleep(1.0)
"""
    limits = some_limits(memory_bytes=64 * GIB)
    end = run_python(code, kind=SandboxKind.PROCESS, limits=limits, room=Room(160 * MIB, RoomOf.CGROUP))
    assert end.kind is ExitKind.EXITED, end.describe()
    end = run_python(code, kind=SandboxKind.PROCESS, limits=limits, room=Room(64 * MIB, RoomOf.CGROUP))
    assert end.kind is ExitKind.OUT_OF_MEMORY and end.max_rss_bytes > 56 * MIB


def test_the_room_of_this_process_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.sandbox.child.find_room", lambda: Room(8 * GIB, RoomOf.HOST))
    assert run_python("pass", kind=SandboxKind.PROCESS).room == Room(8 * GIB, RoomOf.HOST)


ENDED = ChildExit(
    kind=ExitKind.OUT_OF_MEMORY,
    code=None,
    signal=None,
    stop_reason=None,
    wall_seconds=1.0,
    cpu_seconds=1.0,
    max_rss_bytes=7 * GIB,
    stdout_tail="",
    stderr_tail="",
    processes=None,
    sandbox=SandboxKind.PROCESS,
    memory_limit_bytes=62 * GIB,
)
SMALL = Room(8 * GIB, RoomOf.CGROUP)
SAID = f"the cgroup's memory limit is {8 * GIB} bytes"
RAISE_GROUP, RAISE_LIMIT = "memory.max", "raise the limit memory_bytes (--limit"


@pytest.mark.parametrize(
    ("changed", "words", "hint"),
    [
        (
            {"room": SMALL},
            (f"than the {SMALL.child_bytes} bytes", f"limit was {62 * GIB}", SAID),
            RAISE_GROUP,
        ),
        ({"room": SMALL, "memory_limit_bytes": 4 * GIB}, (f"needs more than {4 * GIB} bytes",), RAISE_LIMIT),
        ({"room": Room(16 * GIB, RoomOf.HOST)}, (f"the host has {16 * GIB} bytes",), "a worker with more memory"),
        ({"room": None}, (f"needs more than {62 * GIB} bytes",), RAISE_LIMIT),
        ({"room": SMALL, "ended_by_kernel": True}, ("ended by the kernel", f"at {7 * GIB} bytes", SAID), RAISE_GROUP),
        ({"room": None, "ended_by_kernel": True}, ("ended by the kernel",), "a worker with more memory"),
    ],
)
def test_what_ended_a_build_or_a_proof_for_its_memory_is_told_with_what_to_do(
    changed: dict[str, Any], words: tuple[str, ...], hint: str
) -> None:
    ended = replace(ENDED, **changed)
    built = explain_exit(ended, phase=Phase.COMPILING, limits=Limits())
    proven = children.explain_exit(Watched("numerics", ended, Path(), Path(), {}, "seed 1"))
    assert isinstance(built, CompileOutOfMemory)
    for failure in (built, proven):
        assert all(word in failure.message for word in words), failure.message
        assert hint in failure.hint
    assert "compiling" in built.message and "at: seed 1" in proven.message


def test_a_build_that_was_killed_from_outside_names_what_there_was() -> None:
    lost = ChildExit.lost(wall_seconds=1.0, complaint="", stop_reason=None, sandbox=SandboxKind.PROCESS)
    failure = explain_exit(replace(lost, room=SMALL), phase=Phase.COMPILING, limits=Limits())
    assert isinstance(failure, CompileOutOfMemory) and SAID in failure.message


def test_a_compiler_that_the_kernel_ended_is_told_in_place_of_its_failure(tmp_path: Path) -> None:
    failed = ErrorBody(code=BackendFailed.code, message="g++: Killed", hint="see the log", details={"region": "head"})
    (tmp_path / OUTCOME_FILE).write_bytes(encode(CompileOutcome(error=failed)))
    ended = replace(ENDED, kind=ExitKind.EXITED, code=0, room=SMALL)
    with pytest.raises(BackendFailed, match=r"^g\+\+: Killed"):
        read_outcome(tmp_path, ended, phase=Phase.COMPILING, limits=Limits())
    with pytest.raises(CompileOutOfMemory, match="the kernel ended a process of the build") as caught:
        read_outcome(tmp_path, replace(ended, ended_by_kernel=True), phase=Phase.COMPILING, limits=Limits())
    assert SAID in caught.value.message and "g++: Killed" in caught.value.message
    assert RAISE_GROUP in caught.value.hint and caught.value.details["region"] == "head"


def a_group(place: Path, monkeypatch: pytest.MonkeyPatch, *, neighbour: bool = False) -> Path:
    """The file that counts for a cgroup that is a child's and its worker's alone, or that others share."""
    events = place / "memory.events"
    events.write_text("low 0\noom 7\noom_kill 0\noom_group_kill 0\n")
    # 0 is how a process of another container is listed; one that has ended is no neighbour any more.
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    (place / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n{ended.pid}\n")
    (place / "below").mkdir(exist_ok=True)
    (place / "below" / "cgroup.procs").write_text("0\n" if neighbour else "")
    monkeypatch.setattr("aot.sandbox.child.find_oom_kills", lambda: events)
    return events


KILLED, FAILED = "os.kill(os.getpid(), 9)", "sys.exit(3)"


def end_in_group(how: str, counted: int, kind: SandboxKind, events: Path) -> ChildExit:
    """Run a child that ends so, and that has the group count so many processes that memory has cost."""
    code = f"import os, sys; open(sys.argv[1], 'w').write('oom_kill {counted}\\n'); {how}"
    return run_python(code, str(events), kind=kind, writable=[events.parent])


@EACH_KIND
@pytest.mark.parametrize("neighbour", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("counted", [0, 1])
def test_a_kill_is_the_kernels_where_the_cgroup_counts_it(
    counted: int, neighbour: bool, kind: SandboxKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's own end by SIGKILL is evidence, whoever else there is."""
    end = end_in_group(KILLED, counted, kind, a_group(tmp_path, monkeypatch, neighbour=neighbour))
    assert (end.ended_by_kernel, end.ended_in_group) == (bool(counted), False)
    assert end.kind is (ExitKind.OUT_OF_MEMORY if counted else ExitKind.SIGNALED)


@EACH_KIND
@pytest.mark.parametrize("neighbour", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("counted", [0, 1])
def test_a_neighbours_end_is_not_taken_for_the_childs(
    counted: int, neighbour: bool, kind: SandboxKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_in_group(FAILED, counted, kind, a_group(tmp_path, monkeypatch, neighbour=neighbour))
    assert (end.kind, end.code) == (ExitKind.EXITED, 3)
    assert end.ended_by_kernel is (bool(counted) and not neighbour)
    assert end.ended_in_group is (bool(counted) and neighbour)


def test_a_neighbour_that_has_gone_by_the_end_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = a_group(tmp_path, monkeypatch, neighbour=True)
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('oom_kill 1\\n')\n"
        f"open(os.path.dirname(sys.argv[1]) + '/below/cgroup.procs', 'w').close(); {FAILED}"
    )
    assert run_python(code, str(events), kind=SandboxKind.PROCESS).ended_in_group


@pytest.mark.parametrize("lost", ["cgroup.procs", "below/cgroup.procs"])
def test_a_group_that_cannot_be_read_may_be_anybodys(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = a_group(tmp_path, monkeypatch)
    assert not is_group_shared(str(events), os.getpid())
    (tmp_path / lost).unlink()
    assert is_group_shared(str(events), os.getpid())
    assert is_group_shared(None, os.getpid())


def test_what_the_host_counts_says_nothing_of_a_child_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((0, 1))
    monkeypatch.setattr(supervise, "read_kernel_oom_kills", lambda path: next(counts))
    supervision = supervise.Supervision(
        {"limits": {"memory_bytes": 1, "room_bytes": None}, "bubblewrap": None, "oom_kills": None}
    )
    monkeypatch.setattr(supervision, "_read_status", lambda: 3 << 8)
    supervision._releasing, supervision._failure = threading.Thread(), None
    supervision._releasing.start()
    found = supervision._read_outcome("")
    assert (found["kind"], found["ended_by_kernel"], found["ended_in_group"]) == ("exited", False, False)


NEIGHBOURS = "meanwhile the kernel ended a process of the cgroup, which other processes share, for want of memory"


@pytest.mark.parametrize(
    "said",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "Command '['ptxas']' died with <Signals.SIGKILL: 9>.",
        "`ptxas` failed with error code -9",
        "ld terminated with signal 9 [Killed]",
    ],
)
def test_in_a_shared_group_a_compiler_that_says_so_was_ended(said: str, tmp_path: Path) -> None:
    failed = ErrorBody(code=BackendFailed.code, message="C++ compile error", details={"log": said})
    (tmp_path / OUTCOME_FILE).write_bytes(encode(CompileOutcome(error=failed)))
    ended = replace(ENDED, kind=ExitKind.EXITED, code=0, room=SMALL, ended_in_group=True)
    with pytest.raises(CompileOutOfMemory, match="the kernel ended a process of the build"):
        read_outcome(tmp_path, ended, phase=Phase.COMPILING, limits=Limits())
    with pytest.raises(BackendFailed, match=r"^C\+\+ compile error$"):
        read_outcome(tmp_path, replace(ended, ended_in_group=False), phase=Phase.COMPILING, limits=Limits())


def test_in_a_shared_group_another_failure_stays_what_it_is(tmp_path: Path) -> None:
    failed = ErrorBody(code=BackendFailed.code, message="error: 'x' was not declared", hint="see the log")
    (tmp_path / OUTCOME_FILE).write_bytes(encode(CompileOutcome(error=failed)))
    ended = replace(ENDED, kind=ExitKind.EXITED, code=0, room=SMALL, ended_in_group=True)
    with pytest.raises(BackendFailed, match=r"^error: 'x' was not declared; ") as caught:
        read_outcome(tmp_path, ended, phase=Phase.COMPILING, limits=Limits())
    assert f"{NEIGHBOURS} ({SAID})" in caught.value.message and "of this build or of theirs" in caught.value.message
    assert caught.value.hint == "see the log; try again, or give each worker a container of its own"


def test_a_child_that_failed_beside_a_neighbour_that_was_ended_says_so(tmp_path: Path) -> None:
    ended = replace(ENDED, kind=ExitKind.EXITED, code=3, room=None, ended_in_group=True)
    built = explain_exit(ended, phase=Phase.COMPILING, limits=Limits())
    proven = children.explain_exit(Watched("numerics", ended, Path(), Path(), {}, "seed 1"))
    for failure in (built, proven):
        assert failure is not None and not isinstance(failure, CompileOutOfMemory)
        assert NEIGHBOURS in failure.message and "a container of its own" in failure.hint


@pytest.mark.parametrize(
    ("group", "file", "content"),
    [
        (V2, "/sys/fs/cgroup/pods/worker/memory.events", "oom 0\noom_kill 0\n"),
        (V1, "/sys/fs/cgroup/memory/pods/worker/memory.oom_control", "under_oom 0\noom_kill 0\n"),
    ],
    ids=["v2", "v1"],
)
def test_the_cgroups_own_count_is_found(tmp_path: Path, group: Mapping[str, str], file: str, content: str) -> None:
    assert find_oom_kills(a_tree(tmp_path, HOST, group, {file: content})) == tmp_path / file[1:]
    assert find_oom_kills(a_tree(tmp_path / "old", HOST, group, {file: "under_oom 0\n"})) is None


def test_a_proof_plans_with_no_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.qualify.children.find_room", lambda: SMALL)
    proving = Proving(
        source=None,  # type: ignore[arg-type]
        scratch=tmp_path,
        recipe=Recipe(),
        profile=a_profile(),
        limits=Limits(memory_bytes=62 * GIB),
        sandbox=None,
    )
    proving._write_job(tmp_path / JOB_FILE, task=Task.NUMERICS, out=str(tmp_path))
    assert decode((tmp_path / JOB_FILE).read_bytes(), ProofJob).memory_bytes == SMALL.child_bytes
