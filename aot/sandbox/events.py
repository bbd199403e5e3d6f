"""Progress from a child to its parent: one JSON object a line, on a pipe of its own.

The child finds the pipe's descriptor in the variable that `EVENTS_FD` names, and writes with `write_event`.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

# What a caller gives: it is told every event, and asked for a reason to end (None: go on).
OnEvent = Callable[[Mapping[str, Any]], None]
ShouldStop = Callable[[], str | None]

EVENTS_FD = "AOT_EVENTS_FD"
LINE_BYTES = 64 * 1024


def write_event(fd: int, event: Mapping[str, Any]) -> None:
    """Send one event; blocks while the pipe is full. Raises BrokenPipeError when the parent is gone."""
    line = json.dumps(event).encode() + b"\n"
    while line:
        line = line[os.write(fd, line) :]


class EventReader:
    """Cuts a stream of bytes into events, in order. What is no JSON object is counted and dropped."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._partial = b""
        self._skipping = False
        self.read_bytes = 0
        self.garbled_lines = 0

    def feed(self, chunk: bytes) -> None:
        self.read_bytes += len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._partial) > LINE_BYTES:
            # A line without an end must not fill the parent's memory: what follows it is dropped as well.
            self._skipping, self._partial = True, b""

    def finish(self) -> None:
        """Take a last line that has no newline."""
        if self._partial or self._skipping:
            self._take(self._partial)
        self._partial = b""

    def _take(self, line: bytes) -> None:
        if self._skipping:
            self._skipping = False
            self.garbled_lines += 1
            return
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            self._on_event(event)
        else:
            self.garbled_lines += 1
