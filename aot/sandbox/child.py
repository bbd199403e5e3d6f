"""Runs other people's code, or a proof, in a child process: `run_child` is the one way to do it.

Used by workers (compile), by qualification (start proof, numerics) and by `aot build --here`. The caller's thread
talks to a supervisor (`aot.sandbox.supervise`), which holds the child.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from aot.errors import InvalidInput
from aot.sandbox.bubblewrap import Bind, BindMode, Bubblewrap, checked, same_place, view_devices, view_system, write_arguments
from aot.sandbox.events import EVENTS_FD, EventReader
from aot.sandbox.limits import ChildExit, ExitKind, Limits, SandboxKind

TAIL_BYTES = 16 * 1024
ASK_SECONDS = 0.2
# How much later than the wall clock limit a supervisor may answer: it kills for ten seconds, then drains.
ANSWER_SECONDS = 30.0

# The supervisor needs four modules of this package and the standard library. Giving it bare packages spares it
# `aot/__init__.py` and site-packages: it is running within 30 ms.
_START = """
import sys, types
for name, place in (("aot", sys.argv[2]), ("aot.sandbox", sys.argv[3])):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [place]
from aot.sandbox.supervise import main
main()
"""


def run_child(
    argv: Sequence[str],
    *,
    cwd: Path | PurePosixPath,
    env: Mapping[str, str],
    limits: Limits,
    sandbox: Bubblewrap | None,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    binds: Sequence[Bind] = (),
    devices: Sequence[Path] = (),
    stdout: Path | None = None,
    stderr: Path | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    should_stop: Callable[[], str | None] = lambda: None,
    count_processes: bool = False,
) -> ChildExit:
    """Run `argv` to its end, and return how it ended. Nothing that it started is alive afterwards.

    `argv[0]` is an absolute path, as the child sees it, and so is `cwd`. `env` is the whole environment, to which
    only PWD and, with `on_event`, `EVENTS_FD` are added. `sandbox=None` means limits without isolation; then
    `readable` and `devices` say nothing, and a bind to another place is refused. A child in a sandbox sees the
    system, this Python, `readable`, `writable`, `binds` and `devices`, and a small /tmp unless something is bound there.
    `stdout` and `stderr` name files that receive the streams up to the cap. `on_event` gets the child's event lines
    in order; `should_stop` is asked five times a second, and a text ends the child. Both run in the calling thread,
    and what they raise is raised here after the child is gone. The child dies with this process and with this thread.
    Raises InvalidInput when the child could not be started.
    """
    if not argv or not PurePosixPath(argv[0]).is_absolute():
        raise InvalidInput(f"a child needs an absolute program path, found {list(argv[:1])}")
    binds = (*(same_place(path, BindMode.WRITE) for path in writable), *map(checked, binds))
    env = {**env, "PWD": str(cwd)}
    events = os.pipe() if on_event else None
    if events:
        env[EVENTS_FD] = str(events[1])
    spec: dict[str, Any] = {
        "argv": list(argv),
        "cwd": str(cwd),
        "env": env,
        "bubblewrap": None,
        "limits": vars(limits),
        "writable": _outermost(bind.host for bind in binds if bind.mode is BindMode.WRITE),
        "stdout": stdout and str(stdout.absolute()),
        "stderr": stderr and str(stderr.absolute()),
        "tail_bytes": TAIL_BYTES,
        "events_fd": events and events[1],
        "count": count_processes,
    }
    ...
