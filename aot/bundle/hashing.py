"""Digests of files, while they stream. The lowest part of `aot.bundle`."""

import hashlib
from pathlib import Path
from typing import BinaryIO

from aot.schema.digest import Digest
from aot.schema.spec import Blob

CHUNK_BYTES = 1 << 20


def blob_of(path: Path) -> Blob:
    """Return digest and size of the file at `path`. Raises OSError."""
    with path.open("rb") as file:
        return blob_in(file)


def blob_in(file: BinaryIO, *, most_bytes: int | None = None) -> Blob:
    """Return digest and size of what is left of `file`; of no more than `most_bytes` and a chunk of it."""
    running, size_bytes = hashlib.sha256(), 0
    # Caches have many small files, and a chunk of zeros takes longer to make than one of these to read.
    buffer = bytearray(CHUNK_BYTES if most_bytes is None else min(CHUNK_BYTES, most_bytes + 1))
    view = memoryview(buffer)
    while most_bytes is None or size_bytes <= most_bytes:
        if not (count := file.readinto(buffer)):  # type: ignore[attr-defined]
            break
        running.update(view[:count])
        size_bytes += count
    return Blob(digest=Digest.from_hex(running.hexdigest()), size_bytes=size_bytes)
