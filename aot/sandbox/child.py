"""Runs other people's code, or a proof, in a child process: `run_child` is the one way to do it.

Used by workers (compile), by qualification (start proof, numerics) and by `aot build --here`. The caller's thread
talks (`aot.sandbox.talk`) to a supervisor process (`aot.sandbox.supervise`), which holds the child.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from aot.errors import InvalidInput
from aot.sandbox.bubblewrap import Bind, BindMode, Bubblewrap, checked, same_place, view_system, write_arguments
from aot.sandbox.events import EVENTS_FD, EventReader, OnEvent, ShouldStop
from aot.sandbox.exit import ChildExit
from aot.sandbox.limits import Limits, SandboxKind
from aot.sandbox.packages import view_packages
from aot.sandbox.room import Room, capped, find_oom_kills, find_room
from aot.sandbox.talk import Talk

TAIL_BYTES = 16 * 1024


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
    on_event: OnEvent | None = None,
    should_stop: ShouldStop = lambda: None,
    count_processes: bool = False,
    room: Room | None = None,
) -> ChildExit:
    """Run `argv` to its end, and return how it ended. Nothing that it started is alive afterwards.

    `argv[0]` is an absolute path, as the child sees it, and so is `cwd`. `env` is the whole environment, to which
    only PWD and, with `on_event`, `EVENTS_FD` are added. `sandbox=None` means limits without isolation: `readable`
    and `devices` then say nothing, and a bind to another place is refused. A child in a sandbox sees the system,
    this Python, the places that its packages come from (which it finds by `python_path`), `readable`, `writable`,
    `binds`, `devices`, and a small /tmp in memory unless one is bound.

    `stdout` and `stderr` name files that receive the streams up to the cap. `on_event` gets the child's event lines
    in order; `should_stop` is asked five times a second, and a text that it returns ends the child. Both run in the
    calling thread, and what they raise is raised here once the child is gone. The child also dies with this process
    and with this thread. `room` is the memory that there is, looked for when left out: a child is ended at what
    it has for one, of which files that it maps take none. Raises InvalidInput when the child could not be started.
    """
    shown = [*_same_places(readable, writable, devices), *map(checked, binds)]
    _check(argv, cwd, env, shown, sandbox)
    room = room or find_room()
    reader = EventReader(on_event or (lambda _: None))
    with contextlib.ExitStack() as stack:
        events, writer = _open_pipe(stack) if on_event else (None, None)
        spec: dict[str, Any] = {
            "argv": list(argv),
            "cwd": str(cwd),
            "env": {**env, "PWD": str(cwd)} | ({EVENTS_FD: str(writer.fileno())} if writer else {}),
            "limits": vars(limits) | {"room_bytes": room and room.child_bytes},
            "writable": _outermost(bind.host for bind in shown if bind.mode is BindMode.WRITE),
            **_absolute(stdout=stdout, stderr=stderr, oom_kills=find_oom_kills()),
            "tail_bytes": TAIL_BYTES,
            "events_fd": writer and writer.fileno(),
            "count": count_processes,
        }
        spec["bubblewrap"] = sandbox and _write_bubblewrap(sandbox, spec, shown, most=capped(limits.memory_bytes, room))
        talk = Talk(spec, events=events, writer=writer, reader=reader, should_stop=should_stop)
        stack.callback(talk.end)
        talk.hold()
    return replace(talk.read_exit(_kind_of(sandbox)), memory_limit_bytes=limits.memory_bytes, room=room)


def _kind_of(sandbox: Bubblewrap | None) -> SandboxKind:
    return SandboxKind.BUBBLEWRAP if sandbox else SandboxKind.PROCESS


def _same_places(readable: Sequence[Path], writable: Sequence[Path], devices: Sequence[Path]) -> Iterator[Bind]:
    for paths, mode in ((readable, BindMode.READ), (writable, BindMode.WRITE), (devices, BindMode.DEVICE)):
        yield from (same_place(path, mode) for path in paths)


def _absolute(**places: Path | None) -> dict[str, str | None]:
    return {name: None if place is None else str(place.absolute()) for name, place in places.items()}


def _open_pipe(stack: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
    source, sink = os.pipe()
    return stack.enter_context(open(source, "rb", buffering=0)), stack.enter_context(open(sink, "wb", buffering=0))


def _write_bubblewrap(sandbox: Bubblewrap, spec: dict[str, Any], shown: Sequence[Bind], *, most: int) -> dict[str, Any]:
    arguments = write_arguments(
        sandbox,
        [*view_system(), *view_packages(), *shown],
        env=spec["env"],
        cwd=PurePosixPath(spec["cwd"]),
        memory_bytes=most,
    )
    return {"program": str(sandbox.program), "arguments": arguments}


def _check(
    argv: Sequence[str],
    cwd: Path | PurePosixPath,
    env: Mapping[str, str],
    shown: Sequence[Bind],
    sandbox: Bubblewrap | None,
) -> None:
    if not argv or not PurePosixPath(argv[0]).is_absolute():
        raise InvalidInput(f"a child needs an absolute program path, found {list(argv[:1])}")
    if not PurePosixPath(cwd).is_absolute():
        raise InvalidInput(f"a child needs an absolute working directory, found {cwd}")
    wrong = [name for name, value in env.items() if not name or set("=\0") & set(name) or "\0" in value]
    if wrong:
        raise InvalidInput(f"a child cannot be given the variables {wrong}")
    moved = [bind for bind in shown if str(bind.host) != str(bind.inside)]
    if moved and sandbox is None:
        raise InvalidInput(
            f"{moved[0].host} cannot be shown as {moved[0].inside} without a sandbox",
            hint="install bubblewrap, or use the same path inside",
        )


def _outermost(paths: Iterable[Path]) -> list[str]:
    """Each place once: what lies in another one is counted with it."""
    real = {path.resolve() for path in paths}
    inner = {path for path in real for other in real if path != other and path.is_relative_to(other)}
    return sorted(map(str, real - inner))
