"""What is in use: each holder names its digests in a file that it keeps locked, and eviction leaves those alone.

A holder that dies loses its lock, and its file with the next eviction.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Self

from aot.cache.locks import locked_directory, try_lock
from aot.schema.digest import Digest

EVICTION_WAIT_SECONDS = 5.0


class Hold:
    """Keeps its digests from being evicted until it is closed, or the process ends. Not inherited by `exec`."""

    def __init__(self, root: Path, digests: Iterable[Digest]) -> None:
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        # A directory that cannot be written is one that nothing is evicted from either.
        with contextlib.suppress(OSError):
            (root / "holds").mkdir(parents=True, exist_ok=True)
            # The eviction holds this lock alone: it either sees the hold, or the hold waits for it to end.
            with locked_directory(root, wait_seconds=EVICTION_WAIT_SECONDS, shared=True):
                self._write(root / "holds", digests)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None or self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _write(self, directory: Path, digests: Iterable[Digest]) -> None:
        self._path = directory / f"{os.getpid()}.{os.urandom(6).hex()}"
        self._file = self._path.open("xb", buffering=0)
        try_lock(self._file.fileno())
        self._file.write("\n".join(digests).encode())


def held_digests(root: Path) -> set[str]:
    """Every digest that a living process holds. Call it with the cache's directory locked."""
    held: set[str] = set()
    for path in (root / "holds").glob("*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if try_lock(file.fileno()):
                path.unlink()  # its holder is gone
            else:
                held.update(file.read().decode().split())
    return held
