"""The Range header, as far as a blob needs it: one range of bytes (RFC 9110, section 14)."""

import re
from dataclasses import dataclass
from enum import Enum

_SHAPE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


@dataclass(frozen=True)
class ByteRange:
    """`[start, stop)` of a blob."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Unsatisfiable(Enum):
    """The range lies outside the blob: the answer is 416."""

    RANGE = "range"


def parse_range(header: str | None, *, size: int) -> ByteRange | Unsatisfiable | None:
    """Return the range asked for, or None for the whole blob.

    What is not one range of bytes is ignored, as the RFC allows: the reader gets the whole blob.
    """
    match = _SHAPE.fullmatch((header or "").replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return ByteRange(size - length, size) if length else Unsatisfiable.RANGE
    start = int(match[1])
    stop = min(int(match[2]) + 1, size) if match[2] else size
    if match[2] and int(match[2]) < start:
        return None
    return ByteRange(start, stop) if start < size else Unsatisfiable.RANGE
