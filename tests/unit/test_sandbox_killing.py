"""Nothing of a child outlives its run, nor the process that ran it."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from aot.sandbox import ExitKind, SandboxKind
from tests.sandbox_children import (
    EACH_KIND,
    find_children,
    find_processes,
    open_sandbox,
    run_python,
    some_limits,
    wait_until,
)

ROOT = Path(__file__).parents[2]
# A daemon as daemons are made: another session, no parent, every descriptor closed.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        os.execv(sys.executable, [sys.executable, "-I", "-c", "import time; time.sleep(100)", sys.argv[1]])
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def word() -> str:
    """A word to know the processes of one test by."""
    return f"word-{uuid.uuid4().hex}"


@EACH_KIND
@pytest.mark.parametrize("counted", [False, True])
def test_a_daemon_dies_with_the_child(kind: SandboxKind, counted: bool, word: str) -> None:
    end = run_python(DAEMON, word, "0.2", kind=kind, count_processes=counted)
    assert end.succeeded
    assert find_processes(word) == []
    assert end.wall_seconds < 5


@EACH_KIND
def test_a_daemon_dies_with_a_timed_out_child(kind: SandboxKind, word: str) -> None:
    end = run_python(DAEMON, word, "60", kind=kind, limits=some_limits(wall_seconds=0.5))
    assert end.kind is ExitKind.TIMED_OUT
    assert find_processes(word) == []


@EACH_KIND
def test_a_child_that_ignores_signals_is_ended(kind: SandboxKind) -> None:
    code = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)"
    assert run_python(code, kind=kind, limits=some_limits(wall_seconds=0.3)).kind is ExitKind.TIMED_OUT


@EACH_KIND
@pytest.mark.parametrize("counted", [False, True])
def test_kill_9_of_the_parent_ends_the_tree(kind: SandboxKind, counted: bool, word: str) -> None:
    open_sandbox(kind)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.sandbox_children import run_python, SandboxKind\n"
        f"run_python({DAEMON!r}, sys.argv[2], '60', kind=SandboxKind({str(kind)!r}), count_processes={counted})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(ROOT), word])
    try:
        # The parent itself, bubblewrap's two processes, the child and its daemon.
        wanted = 3 if kind is SandboxKind.PROCESS else 5
        assert wait_until(lambda: len(find_processes(word)) >= wanted), find_processes(word)
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: find_processes(word) == []), find_processes(word)


@EACH_KIND
def test_what_a_callback_raises_ends_the_child_and_is_raised(kind: SandboxKind, word: str) -> None:
    def should_stop() -> str | None:
        if len(find_processes(word)) > 1:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        run_python(DAEMON, word, "60", kind=kind, should_stop=should_stop)
    assert find_processes(word) == []


def test_a_killed_supervisor_is_a_lost_child(word: str) -> None:
    before = find_children()

    def kill_supervisor() -> str | None:
        if find_processes(word):
            for pid in find_children().keys() - before:
                os.kill(pid, signal.SIGKILL)
        return None

    code = "import time; time.sleep(60)"
    end = run_python(code, word, kind=SandboxKind.PROCESS, should_stop=kill_supervisor)
    assert (end.kind, end.processes, end.succeeded) == (ExitKind.LOST, None, False)
    assert wait_until(lambda: find_processes(word) == [])


@EACH_KIND
def test_the_kernel_is_told_to_take_the_child_first(kind: SandboxKind) -> None:
    assert run_python("print(open('/proc/self/oom_score_adj').read())", kind=kind).stdout_tail.strip() == "1000"


def test_ignored_and_blocked_signals_of_the_parent_are_not_inherited() -> None:
    code = (
        "import signal\n"
        "print([int(signal.getsignal(n)) for n in (1, 15, 17)], signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        end = run_python(code, kind=SandboxKind.PROCESS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, before[0])
        signal.signal(signal.SIGHUP, before[1])
    assert end.stdout_tail == "[0, 0, 0] set()\n"


def test_no_descriptor_and_no_process_is_left_behind() -> None:
    run_python("pass", kind=SandboxKind.PROCESS, on_event=lambda _: None)
    before, children = sorted(os.listdir("/proc/self/fd")), find_children()
    for _ in range(3):
        run_python("pass", kind=SandboxKind.PROCESS, on_event=lambda _: None)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert find_children().keys() - children == set()
