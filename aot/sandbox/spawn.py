"""Forks the child of the supervisor and makes it ready: session, signals, descriptors, directory, environment."""

import ctypes
import os
import resource
import signal
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Raises OSError when the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


class Spawned:
    """A child that waits at a gate, so that it can be seized before its program runs."""

    def __init__(self, pid: int, gate: int, failure: int) -> None:
        self.pid = pid
        self._gate = gate
        self._failure = failure

    def release(self) -> str | None:
        """Let the program run. Returns None once it runs, else why it could not."""
        os.write(self._gate, b"x")
        os.close(self._gate)
        text = b""
        while chunk := os.read(self._failure, 4096):
            text += chunk
        os.close(self._failure)
        return text.decode(errors="replace") or None


def spawn(spec: dict[str, Any], *, stdout: int, stderr: int, passed: tuple[int, ...]) -> Spawned:
    """Fork the child of `spec` (`argv`, `env`, `cwd`). Must be called before any thread is started.

    `stdout` and `stderr` become the child's, the descriptors in `passed` keep their numbers, all others close.
    """
    supervisor = os.getpid()
    gate_out, gate_in = os.pipe()
    failure_out, failure_in = os.pipe()
    pid = os.fork()
    if pid:
        os.close(gate_out)
        os.close(failure_in)
        return Spawned(pid, gate_in, failure_out)
    try:
        _become_child(supervisor, stdout=stdout, stderr=stderr, passed=passed)
        os.close(gate_in)
        if not os.read(gate_out, 1):
            os._exit(127)  # the supervisor died
        if spec["cwd"]:
            os.chdir(spec["cwd"])
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(failure_in, str(error).encode())
    finally:
        os._exit(127)


def _become_child(supervisor: int, *, stdout: int, stderr: int, passed: tuple[int, ...]) -> None:
    os.setsid()
    # Holds for this process alone; what it starts is killed by the supervisor, or by the end of its PID namespace.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(127)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # what the supervisor took is not the child's
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _offer_to_oom_killer()
    stdin = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
    for fd in passed:
        os.set_inheritable(fd, True)


def _offer_to_oom_killer() -> None:
    # When the machine runs out of memory between two samples, the kernel shall take the child and not the worker.
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
