"""Reads how a child ended from what wait or bubblewrap reports."""

import json
import os
import signal
from typing import Any


def read_bubblewrap_status(fd: int) -> int | None:
    """The wait status of bubblewrap's child from its JSON lines in the file `fd`.

    None when there is none, because bubblewrap did not come as far as to start the child. It tells the end by signal
    n as exit code 128 + n, like a shell.
    """
    code = _read_field(fd, "exit-code")
    if code is None:
        return None
    return code - 128 if 128 < code < 128 + signal.NSIG else code << 8


def read_bubblewrap_init(fd: int) -> int | None:
    """The process whose end is the end of everything in the sandbox; None while there is none yet."""
    return _read_field(fd, "child-pid")


def _read_field(fd: int, name: str) -> int | None:
    for line in os.pread(fd, 64 * 1024, 0).splitlines(keepends=True):
        if line.endswith(b"\n") and name in (fields := json.loads(line)):
            return fields[name]
    return None


def describe_end(status: int, *, oom_killed: bool) -> dict[str, Any]:
    """`kind`, `code` and `signal` of a report. `oom_killed`: the kernel ran out of memory while the child ran."""
    if not os.WIFSIGNALED(status):
        return {"kind": "exited", "code": os.WEXITSTATUS(status), "signal": None}
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL and oom_killed:
        return {"kind": "out_of_memory", "code": None, "signal": None}
    return {"kind": "signaled", "code": None, "signal": _name(number)}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal
