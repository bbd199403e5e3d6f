"""Size and digest of bytes while they pass, compared with what was announced."""

import hashlib
from typing import Any, Protocol

from aot.errors import DigestMismatch, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.spec import Blob


class Sink(Protocol):
    def write(self, chunk: bytes, /) -> Any: ...


class Measure:
    """Writes through to `sink` and keeps size and digest."""

    def __init__(self, blob: Blob, sink: Sink) -> None:
        self.blob = blob
        self.size_bytes = 0
        self._sink = sink
        self._running = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Raises SizeMismatch before the first byte too many is written."""
        self.size_bytes += len(chunk)
        if self.size_bytes > self.blob.size_bytes:
            raise SizeMismatch(
                f"{self.blob.digest} was announced with {self.blob.size_bytes} bytes, more arrived",
                hint="ask for an upload link with the right size",
            )
        self._running.update(chunk)
        self._sink.write(chunk)

    def finish(self) -> None:
        """Raises SizeMismatch or DigestMismatch when what passed is not what was announced."""
        if self.size_bytes != self.blob.size_bytes:
            raise SizeMismatch(
                f"{self.blob.digest} was announced with {self.blob.size_bytes} bytes, {self.size_bytes} arrived",
                hint="send it again, whole",
            )
        found = Digest("sha256:" + self._running.hexdigest())
        if found != self.blob.digest:
            raise DigestMismatch(
                f"wanted bytes of {self.blob.digest}, found {found}", hint="the file changed while it was sent"
            )
