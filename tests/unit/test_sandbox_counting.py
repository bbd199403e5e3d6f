"""Processes are counted from outside, the shortest ones too, and a count that could not be made says so."""

import json
import sys
from pathlib import Path

import pytest

from aot.sandbox import CountedBy, ExitKind, ProcessCount, Program, SandboxKind
from tests.sandbox_children import EACH_KIND, run_python


def count(code: str, kind: SandboxKind) -> ProcessCount:
    end = run_python(code, kind=kind, count_processes=True)
    assert end.succeeded, end
    assert end.processes is not None
    assert end.processes.counted_by is CountedBy.PTRACE, end.processes.why_not
    return end.processes


@EACH_KIND
def test_a_child_that_starts_nothing_is_proven(kind: SandboxKind) -> None:
    counted = count("import threading\nfor _ in range(50): threading.Thread(target=int).start()", kind)
    assert counted == ProcessCount(counted_by=CountedBy.PTRACE, forks=0, execs=0, programs=())
    assert counted.proves_none


@EACH_KIND
def test_fifty_short_programs_are_fifty(kind: SandboxKind) -> None:
    counted = count("import subprocess\nfor _ in range(50): subprocess.run(['/bin/true', 'word'])", kind)
    assert (counted.forks, counted.execs, set(counted.programs)) == (
        50,
        50,
        {Program(str(Path("/bin/true").resolve()), ("/bin/true", "word"))},
    )
    assert not counted.proves_none


@EACH_KIND
def test_a_fork_without_a_program_is_counted(kind: SandboxKind) -> None:
    code = (
        "import os\n"
        "pids = []\n"
        "for _ in range(7):\n"
        "    pids.append(os.fork())\n"
        "    if not pids[-1]: os._exit(0)\n"
        "for pid in pids: os.waitpid(pid, 0)"
    )
    counted = count(code, kind)
    assert (counted.forks, counted.execs, counted.proves_none) == (7, 0, False)


@EACH_KIND
def test_programs_started_by_threads_and_grandchildren_are_counted(kind: SandboxKind) -> None:
    code = (
        "import subprocess, threading\n"
        "run = lambda: subprocess.run(['/bin/sh', '-c', '/bin/true; /bin/true; exit 0'])\n"
        "threads = [threading.Thread(target=run) for _ in range(10)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    )
    counted = count(code, kind)
    assert (counted.forks, counted.execs) == (30, 30)
    names = sorted(Path(program.argv[0]).name for program in counted.programs)
    assert names == ["sh"] * 10 + ["true"] * 20


def test_a_program_that_replaces_the_child_is_counted() -> None:
    counted = count("import os; os.execv('/bin/true', ['/bin/true'])", SandboxKind.PROCESS)
    assert (counted.forks, counted.execs) == (0, 1)


def test_a_script_is_recorded_with_its_name(tmp_path: Path) -> None:
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    counted = count(f"import subprocess; subprocess.run([{str(script)!r}, '-v'])", SandboxKind.PROCESS)
    (program,) = counted.programs
    assert program.argv == ("/bin/sh", str(script), "-v")


@EACH_KIND
def test_signals_stops_and_threads_work_under_counting(kind: SandboxKind) -> None:
    code = (
        "import os, signal, subprocess, time\n"
        "got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1)); os.kill(os.getpid(), signal.SIGUSR1)\n"
        "child = subprocess.Popen(['/bin/sleep', '30'])\n"
        "child.send_signal(signal.SIGSTOP)\n"
        "assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])\n"
        "child.send_signal(signal.SIGCONT); child.terminate()\n"
        "assert child.wait() == -signal.SIGTERM and got == [1]\n"
    )
    counted = count(code, kind)
    assert (counted.forks, counted.execs) == (1, 1)


@EACH_KIND
def test_the_count_of_a_crashed_child_is_kept(kind: SandboxKind) -> None:
    code = "import os, subprocess; subprocess.run(['/bin/true']); os.abort()"
    end = run_python(code, kind=kind, count_processes=True)
    assert (end.kind, end.signal) == (ExitKind.SIGNALED, "SIGABRT")
    assert end.processes is not None and end.processes.execs == 1


@pytest.fixture(scope="module")
def count_under_a_tracer() -> dict[str, object]:
    """A count made where ptrace fails, because the processes are traced already: by an outer count."""
    inner = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.sandbox_children import run_python, SandboxKind\n"
        "code = \"import subprocess; subprocess.run(['/bin/sleep', '0.5'])\"\n"
        "end = run_python(code, kind=SandboxKind.PROCESS, count_processes=True)\n"
        "p = end.processes\n"
        "paths = [program.path for program in p.programs]\n"
        "print(json.dumps([end.succeeded, p.counted_by, p.forks, p.why_not, paths, p.proves_none]))"
    )
    root = Path(__file__).parents[2]
    end = run_python(inner, str(root), kind=SandboxKind.PROCESS, count_processes=True)
    assert end.succeeded, end.stderr_tail
    names = ("succeeded", "counted_by", "forks", "why_not", "programs", "proves_none")
    return dict(zip(names, json.loads(end.stdout_tail), strict=True))


def test_without_ptrace_the_count_says_that_it_is_none(count_under_a_tracer: dict[str, object]) -> None:
    assert count_under_a_tracer["counted_by"] == "polling"
    assert count_under_a_tracer["forks"] is None
    assert "ptrace" in str(count_under_a_tracer["why_not"])
    assert count_under_a_tracer["proves_none"] is False


def test_without_ptrace_long_lived_programs_are_still_seen(count_under_a_tracer: dict[str, object]) -> None:
    assert count_under_a_tracer["succeeded"] is True
    assert count_under_a_tracer["programs"] == [str(Path("/bin/sleep").resolve())]
    assert sys.executable not in str(count_under_a_tracer["programs"])
