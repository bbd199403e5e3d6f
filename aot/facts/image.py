"""A file's bytes, read with every offset checked. The lowest part of `aot.facts`."""

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aot.errors import MalformedDocument

TEXT_BYTES = 16 * 1024  # the longest name that is believed: mangled C++ names reach a few kilobytes
_ZEROS = re.compile(rb"\0*")


class Image:
    """The bytes of one file. Every method raises MalformedDocument where it would leave them."""

    def __init__(self, content: mmap.mmap | bytes, *, name: str) -> None:
        self._content = content
        self.name = name
        self.size_bytes = len(content)

    def unpack(self, layout: struct.Struct, offset: int) -> tuple[Any, ...]:
        self.check(offset, layout.size)
        return layout.unpack_from(self._content, offset)

    def bytes_at(self, offset: int, size_bytes: int) -> bytes:
        self.check(offset, size_bytes)
        return self._content[offset : offset + size_bytes]

    def text_at(self, offset: int, *, end: int) -> str:
        """Return the NUL-terminated text at `offset`, whose terminator lies before `end`."""
        self.check(offset, 1)
        stop = self._content.find(b"\0", offset, min(end, self.size_bytes, offset + TEXT_BYTES))
        if stop < 0:
            raise self.malformed(f"a text at offset {offset} has no end")
        return self._content[offset:stop].decode("utf-8", errors="backslashreplace")

    def after_zeros(self, offset: int, *, end: int) -> int:
        """Return the offset of the first byte from `offset` on that is not zero, `end` where all are before it."""
        found = _ZEROS.match(self._content, offset, end)  # whatever is left of a file is searched at once, not by bytes
        return offset if found is None else found.end()

    def find_all(self, needle: bytes, *, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Yield every offset of `needle`, also overlapping ones."""
        end = self.size_bytes if end is None else end
        offset = self._content.find(needle, start, end)
        while offset >= 0:
            yield offset
            offset = self._content.find(needle, offset + 1, end)

    def holds(self, needle: bytes) -> bool:
        return self._content.find(needle) >= 0

    def matches(self, pattern: re.Pattern[bytes]) -> Iterator[bytes]:
        """Yield what `pattern` matches anywhere in the file, from its beginning."""
        for match in pattern.finditer(self._content):
            yield match[0]

    def check_count(self, count: int, *, limit: int, what: str) -> None:
        """Keep work bounded: a table of a small file can point at one place a million times."""
        if count > limit:
            raise self.malformed(f"it has more than {limit} {what}")

    def check(self, offset: int, size_bytes: int) -> None:
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise self.malformed(
                f"{size_bytes} bytes at offset {offset} are outside the file of {self.size_bytes} bytes"
            )

    def malformed(self, finding: str) -> MalformedDocument:
        return MalformedDocument(
            f"{self.name} cannot be read as a compiled file: {finding}",
            hint="the file is damaged or of another kind; build or fetch it again",
            details={"path": self.name},
        )


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Map `path` read-only for the block. Raises MalformedDocument for an empty file, OSError for one not readable."""
    with path.open("rb") as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise Image(b"", name=path.name).malformed("it is empty") from None
        with content:
            yield Image(content, name=path.name)
