"""Every way for a child to end is told apart, and every limit holds."""

import os
import time
from pathlib import Path, PurePosixPath

import pytest

from aot.cache.trees import remove_tree
from aot.errors import InvalidInput
from aot.sandbox import Bind, BindMode, ChildExit, ExitKind, SandboxKind, run_child
from aot.sandbox.usage import UNCOUNTABLE_BYTES, read_disk_bytes
from tests.sandbox_children import EACH_KIND, MIB, find_children, open_sandbox, run_python, some_limits

EXAMPLE = ChildExit(
    kind=ExitKind.EXITED,
    code=3,
    signal=None,
    stop_reason=None,
    wall_seconds=1.0,
    cpu_seconds=1.0,
    max_rss_bytes=1,
    stdout_tail="",
    stderr_tail="",
    processes=None,
    sandbox=SandboxKind.PROCESS,
)


@EACH_KIND
def test_a_normal_end_gives_code_tails_and_usage(kind: SandboxKind) -> None:
    code = (
        "import sys,time; t=time.process_time()\nwhile time.process_time()-t < 0.2: pass\nx=bytearray(b'1'*(40<<20))\n"
    )
    end = run_python(code + "print('out'); sys.stderr.buffer.write(b'err \\xff'); sys.exit(3)", kind=kind)
    assert (end.kind, end.code, end.signal, end.sandbox) == (ExitKind.EXITED, 3, None, kind)
    assert (end.stdout_tail, end.stderr_tail, end.succeeded) == ("out\n", "err \ufffd", False)
    assert 0.2 <= end.cpu_seconds < 5 and 0.2 <= end.wall_seconds < 20
    assert 40 * MIB < end.max_rss_bytes < 150 * MIB
    assert end.processes is None and end.survivors == 0


@EACH_KIND
@pytest.mark.parametrize("counted", [False, True])
def test_a_crash_names_its_signal(kind: SandboxKind, counted: bool) -> None:
    code = "import ctypes; ctypes.string_at(0)"
    end = run_python(code, kind=kind, count_processes=counted)
    assert (end.kind, end.code, end.signal) == (ExitKind.SIGNALED, None, "SIGSEGV")
    assert end.describe() == "died of SIGSEGV"


@EACH_KIND
def test_an_illegal_instruction_is_named(kind: SandboxKind) -> None:
    assert run_python("import os; os.kill(os.getpid(), 4)", kind=kind).signal == "SIGILL"


@EACH_KIND
def test_os_exit_is_a_normal_end(kind: SandboxKind) -> None:
    end = run_python("import os; os._exit(9)", kind=kind)
    assert (end.kind, end.code) == (ExitKind.EXITED, 9)


def test_a_counted_child_in_bubblewrap_may_exit_with_139() -> None:
    end = run_python("raise SystemExit(139)", kind=SandboxKind.BUBBLEWRAP, count_processes=True)
    assert (end.kind, end.code) == (ExitKind.EXITED, 139)


@EACH_KIND
def test_a_hanging_child_times_out(kind: SandboxKind) -> None:
    end = run_python("import time; time.sleep(60)", kind=kind, limits=some_limits(wall_seconds=0.3))
    assert end.kind is ExitKind.TIMED_OUT
    assert 0.3 <= end.wall_seconds < 3


@EACH_KIND
@pytest.mark.parametrize("counted", [False, True])
def test_touching_too_much_memory_ends_as_out_of_memory(kind: SandboxKind, counted: bool) -> None:
    code = "blocks = []\nwhile True: blocks.append(bytearray(b'1' * (1 << 20)))"
    end = run_python(code, kind=kind, count_processes=counted)
    assert (end.kind, end.code) == (ExitKind.OUT_OF_MEMORY, None)
    assert 256 * MIB < end.max_rss_bytes < 4096 * MIB
    assert end.cpu_seconds > 0


@EACH_KIND
def test_memory_is_summed_over_the_tree(kind: SandboxKind) -> None:
    code = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        block = bytearray(b'1' * (100 << 20)); time.sleep(30); os._exit(0)\n"
        "time.sleep(30)"
    )
    assert run_python(code, kind=kind).kind is ExitKind.OUT_OF_MEMORY


@EACH_KIND
def test_pages_shared_by_forks_count_once(kind: SandboxKind) -> None:
    code = (
        "import os, time\n"
        "block = bytearray(b'1' * (120 << 20))\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0: break\n"
        "time.sleep(0.5)"
    )
    end = run_python(code, kind=kind)
    assert end.succeeded, end
    assert end.max_rss_bytes < 256 * MIB


@EACH_KIND
def test_an_allocation_that_is_refused_is_a_normal_end(kind: SandboxKind) -> None:
    end = run_python("bytearray(1 << 60)", kind=kind)
    assert (end.kind, end.code) == (ExitKind.EXITED, 1)
    assert "MemoryError" in end.stderr_tail


@EACH_KIND
def test_a_gigabyte_of_output_is_cut_and_its_tail_kept(kind: SandboxKind, tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "block = b'x' * 65535 + b'\\n'\n"
        "os.write(2, b'a word on the other stream\\n')\n"
        "for _ in range(1 << 14): os.write(1, block)"
    )
    end = run_python(code, kind=kind, stdout=tmp_path / "out", stderr=tmp_path / "err")
    assert end.kind is ExitKind.TOO_MUCH_OUTPUT
    assert (tmp_path / "out").stat().st_size + (tmp_path / "err").stat().st_size == MIB
    assert (tmp_path / "err").read_text() == end.stderr_tail == "a word on the other stream\n"
    assert 1000 < len(end.stdout_tail) <= 16 * 1024
    assert set(end.stdout_tail) <= {"x", "\n"}


def test_memory_of_parent_and_supervisor_stays_flat_under_output() -> None:
    peaks: list[int] = []
    before = find_children()

    def watch() -> None:
        peaks.extend(entry.rss_bytes for pid, entry in find_children().items() if pid not in before)

    code = "import os\nfor _ in range(1 << 13): os.write(1, b'x' * 65536)"
    end = run_python(code, kind=SandboxKind.PROCESS, limits=some_limits(output_bytes=1 << 30), should_stop=watch)
    assert end.succeeded
    assert peaks and max(peaks) < 60 * MIB


@EACH_KIND
def test_a_full_stream_within_the_cap_is_kept_whole(kind: SandboxKind, tmp_path: Path) -> None:
    end = run_python("print('line\\n' * 100_000, end='')", kind=kind, stdout=tmp_path / "out")
    assert end.succeeded
    assert (tmp_path / "out").read_text() == "line\n" * 100_000


@EACH_KIND
def test_too_many_processes_end_the_child(kind: SandboxKind) -> None:
    code = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: break\ntime.sleep(30)"
    end = run_python(code, kind=kind, limits=some_limits(processes=8))
    assert end.kind is ExitKind.TOO_MANY_PROCESSES


@EACH_KIND
def test_a_burst_of_forks_is_ended_soon(kind: SandboxKind) -> None:
    # A thousand, not without end: where this machine gives the supervisor no precedence, it shall get by.
    code = "import os, time\nfor _ in range(10): os.fork()\ntime.sleep(30)"
    end = run_python(code, kind=kind, limits=some_limits(processes=8))
    assert (end.kind, end.survivors) == (ExitKind.TOO_MANY_PROCESSES, 0)
    assert end.wall_seconds < 10


@EACH_KIND
@pytest.mark.parametrize("lives_on", [True, False])
def test_too_much_disk_ends_the_child(kind: SandboxKind, lives_on: bool, tmp_path: Path) -> None:
    code = "import sys,time\nopen(sys.argv[1],'wb').write(b'1'*(8<<20))\ntime.sleep(30 if sys.argv[2]=='True' else 0)"
    limits = some_limits(disk_bytes=4 * MIB)
    end = run_python(code, str(tmp_path / "f"), str(lives_on), kind=kind, limits=limits, writable=[tmp_path])
    assert end.kind is ExitKind.TOO_MUCH_DISK
    assert end.wall_seconds < 5


def test_directories_too_deep_to_be_counted_are_too_much_disk(tmp_path: Path) -> None:
    assert read_disk_bytes([str(tmp_path)]) < UNCOUNTABLE_BYTES
    before = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=before)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=before)
        os.close(before)
        before = inner
    os.close(before)
    assert read_disk_bytes([str(tmp_path)]) >= UNCOUNTABLE_BYTES
    remove_tree(tmp_path / ("d" * 200))


@EACH_KIND
def test_files_that_were_there_do_not_count_as_used_disk(kind: SandboxKind, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1" * (8 * MIB))
    code = "import sys; open(sys.argv[1] + '/new', 'wb').write(b'1' * 4096)"
    limits = some_limits(disk_bytes=4 * MIB)
    assert run_python(code, str(tmp_path), kind=kind, limits=limits, writable=[tmp_path]).succeeded


@EACH_KIND
def test_a_stop_ends_the_child_within_a_second(kind: SandboxKind) -> None:
    began = time.monotonic()

    def should_stop() -> str | None:
        return "lease lost" if time.monotonic() - began > 0.5 else None

    end = run_python("import time; time.sleep(60)", kind=kind, should_stop=should_stop)
    assert (end.kind, end.stop_reason, end.describe()) == (ExitKind.STOPPED, "lease lost", "stopped: lease lost")
    assert time.monotonic() - began < 1.5


@EACH_KIND
@pytest.mark.parametrize("argv", [["/nonexistent/program"], ["/etc/passwd"]])
def test_a_program_that_cannot_run_is_invalid_input(kind: SandboxKind, argv: list[str]) -> None:
    with pytest.raises(InvalidInput, match="did not start") as caught:
        run_child(argv, cwd=Path("/"), env={}, limits=some_limits(), sandbox=open_sandbox(kind))
    assert argv[0] in caught.value.message


@EACH_KIND
def test_a_working_directory_that_is_not_there_is_invalid_input(kind: SandboxKind) -> None:
    with pytest.raises(InvalidInput, match="/nonexistent"):
        run_python("pass", kind=kind, cwd=Path("/nonexistent"))


def test_relative_programs_missing_places_and_moved_binds_are_refused(tmp_path: Path) -> None:
    common = {"env": {}, "limits": some_limits(), "sandbox": None}
    with pytest.raises(InvalidInput, match="absolute program"):
        run_child(["python"], cwd=Path("/"), **common)
    with pytest.raises(InvalidInput, match="does not exist"):
        run_child(["/bin/true"], cwd=Path("/"), readable=[tmp_path / "absent"], **common)
    moved = Bind(tmp_path, PurePosixPath("/build"), BindMode.WRITE)
    with pytest.raises(InvalidInput, match="without a sandbox"):
        run_child(["/bin/true"], cwd=Path("/"), binds=[moved], **common)


@pytest.mark.parametrize("name", ["wall_seconds", "memory_bytes", "processes", "output_bytes", "disk_bytes"])
def test_limits_must_be_above_zero(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        some_limits(**{name: 0})


def test_a_log_that_cannot_be_written_is_invalid_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="absent"):
        run_python("pass", kind=SandboxKind.PROCESS, stdout=tmp_path / "absent" / "out")


@pytest.mark.parametrize(
    ("changed", "said"),
    [({}, "exited with code 3"), ({"kind": ExitKind.TIMED_OUT}, "timed out"), ({"kind": ExitKind.LOST}, "lost")],
)
def test_an_end_is_described_in_words(changed: dict[str, ExitKind], said: str) -> None:
    fields = {**vars(EXAMPLE), **changed}
    assert ChildExit(**fields).describe() == said
