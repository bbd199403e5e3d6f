"""The log files that children of a build write, read while they grow."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Written by the sandbox's supervisor, in directories that no child may write: nobody can put a link there.
PATTERNS = ("compile/std???.txt", "qualify/*/std???.txt")
MOST_BYTES = 1 << 20  # of one file at one look; what a flood wrote before is left out
PARTIAL_BYTES = 8 << 10  # a longer line is cut
# The start proof has Python list every import: thousands of lines that nobody reads here.
_NOISE = b"import time:"
_ENDS = re.compile(rb"[\r\n]+")


@dataclass
class _Place:
    offset: int = 0
    partial: bytes = b""


class LogFiles:
    """Standard output and error of every child below `root`. Not safe between threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._places: dict[Path, _Place] = {}

    def read(self, *, last: bool = False) -> list[str]:
        """Return the lines that are new; with `last` also one that has no end yet."""
        lines: list[str] = []
        for path in self._paths():
            place = self._places.setdefault(path, _Place())
            with contextlib.suppress(OSError):
                lines += _new_lines(path, place, last=last)
        return lines

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            for pattern in PATTERNS:
                yield from sorted(self._root.glob(pattern))


def _new_lines(path: Path, place: _Place, *, last: bool) -> list[str]:
    lines: list[str] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return lines
        if (skipped := status.st_size - place.offset - MOST_BYTES) > 0:
            lines.append(f"[{skipped + len(place.partial)} bytes left out]")
            place.offset, place.partial = place.offset + skipped, b""
        file.seek(place.offset)
        chunk = file.read(MOST_BYTES)
    place.offset += len(chunk)
    *whole, place.partial = _ENDS.split(place.partial + chunk)
    if last or len(place.partial) > PARTIAL_BYTES:
        whole.append(place.partial)
        place.partial = b""
    told = (line for line in whole if line.strip() and not line.startswith(_NOISE))
    return lines + [line.decode(errors="replace") for line in told]
