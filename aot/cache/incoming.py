"""A blob on its way in: a temporary file that knows its size and digest, and a name only once it is whole."""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from aot.cache.faults import cache_error
from aot.cache.locks import open_to_lock, try_lock
from aot.cache.renames import rename_into
from aot.errors import DigestMismatch, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.spec import Blob

ABANDONED_AFTER_SECONDS = 60.0


class Incoming:
    """Where the bytes of one blob are written, in order."""

    def __init__(self, root: Path, blob: Blob) -> None:
        """Raises OSError when the directory cannot be written."""
        self.blob = blob
        self.size_bytes = 0
        self._root = root
        self._running = hashlib.sha256()
        self.path, self._file = _temporary(root, blob.digest)

    def write(self, chunk: bytes) -> None:
        """Append. Raises SizeMismatch at the first byte too many, LocalStorageFull when the disk is."""
        self.size_bytes += len(chunk)
        if self.size_bytes > self.blob.size_bytes:
            raise SizeMismatch(
                f"wanted {self.blob.size_bytes} bytes of {self.blob.digest}, found more",
                hint="the store serves other bytes than the manifest names; do not use them",
            )
        self._running.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise cache_error(error, self._root, f"store {self.blob.digest} in the cache") from error

    def finish(self, final: Path) -> None:
        """Give the bytes their name. Raises SizeMismatch or DigestMismatch unless they are exactly the blob."""
        if self.size_bytes != self.blob.size_bytes:
            raise SizeMismatch(
                f"wanted {self.blob.size_bytes} bytes of {self.blob.digest}, found {self.size_bytes}",
                hint="fetch it again; if it repeats, the store holds a damaged blob",
            )
        found = Digest("sha256:" + self._running.hexdigest())
        if found != self.blob.digest:
            raise DigestMismatch(
                f"wanted bytes of {self.blob.digest}, found {found}",
                hint="the store serves other bytes than the manifest names; do not use them",
            )
        self._file.flush()
        self.path.chmod(0o444)
        final.parent.mkdir(parents=True, exist_ok=True)
        rename_into(self.path, final, is_whole=lambda: _holds(final, self.blob))

    def discard(self) -> None:
        """Close the file, and remove it where it never got its name."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._file.close()  # on a full disk, closing fails to flush what is removed anyway


@contextmanager
def incoming(root: Path, blob: Blob, final: Path) -> Iterator[Incoming]:
    """Write `blob` under a temporary name in `root`; leaving the block verifies it, then renames it to `final`.

    Any failure removes the file. Raises SizeMismatch, DigestMismatch, LocalStorageFull, InvalidConfig; what the
    block itself raises passes through.
    """
    wish = f"store {blob.digest} in the cache"
    try:
        writer = Incoming(root, blob)
    except OSError as error:
        raise cache_error(error, root, wish) from error
    try:
        yield writer
        try:
            writer.finish(final)
        except OSError as error:
            raise cache_error(error, root, wish) from error
    finally:
        writer.discard()


def arrivals(root: Path, digest: Digest) -> frozenset[tuple[str, int]]:
    """Each file of a writer of the blob, maybe another process, and how much is in it by now.

    It changes for as long as one of them gets on.
    """
    found = set()
    for path in (root / "incoming").glob(f"{digest.hex}.*"):
        with contextlib.suppress(OSError):
            found.add((path.name, path.stat().st_size))
    return frozenset(found)


def arrived_bytes(root: Path, digest: Digest) -> int:
    """How much of the blob its writer, maybe another process, has on the disk by now; 0 where nobody writes it."""
    return max((size for _, size in arrivals(root, digest)), default=0)


def sweep_incoming(root: Path) -> None:
    """Remove the temporary files of writers that died: those that are old and that nobody has locked."""
    for path in (root / "incoming").glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < ABANDONED_AFTER_SECONDS:
                continue
            with open_to_lock(path) as file:
                if try_lock(file.fileno()):
                    path.unlink()


def _holds(final: Path, blob: Blob) -> bool:
    try:
        with final.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == blob.digest.hex
    except OSError:
        return False


def _temporary(root: Path, digest: Digest) -> tuple[Path, BinaryIO]:
    directory = root / "incoming"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{digest.hex}.{os.getpid()}.{os.urandom(6).hex()}"
    file = path.open("xb")
    try_lock(file.fileno())  # tells `sweep_incoming` that its writer lives
    return path, file
