"""Children for the sandbox tests: short Python programs, with and without isolation."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot.sandbox import Bubblewrap, ChildExit, Limits, NoSandbox, SandboxKind, find_sandbox, run_child
from aot.sandbox.tree import Entry, find_descendants

MIB = 1024 * 1024
EACH_KIND = pytest.mark.parametrize("kind", list(SandboxKind))


def open_sandbox(kind: SandboxKind) -> Bubblewrap | None:
    """The sandbox of `kind`. The one place that skips where bubblewrap does not work."""
    if kind is SandboxKind.PROCESS:
        return None
    match find_sandbox():
        case NoSandbox(reason):
            pytest.skip(reason)
        case sandbox:
            return sandbox


def some_limits(**changed: Any) -> Limits:
    fields = {"wall_seconds": 30.0, "memory_bytes": 256 * MIB, "processes": 32, "output_bytes": MIB}
    return Limits(**{**fields, **changed})


def run_python(
    code: str, *arguments: str, kind: SandboxKind, limits: Limits | None = None, **changed: Any
) -> ChildExit:
    """Run `code` in a child that gets an empty environment unless told otherwise."""
    fields: dict[str, Any] = {"cwd": Path("/"), "env": {}, "limits": limits or some_limits()}
    argv = [sys.executable, "-I", "-c", code, *arguments]
    return run_child(argv, sandbox=open_sandbox(kind), **{**fields, **changed})


def find_processes(word: str) -> list[int]:
    """The processes that have `word` in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def find_children() -> dict[int, Entry]:
    """The children of this process by pid, ended ones too.

    Other tests of the process have some as well (servers that a session shares): compare with those of before.
    """
    me = os.getpid()
    return {entry.pid: entry for entry in find_descendants(me) if entry.parent == me}


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
