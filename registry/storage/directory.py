"""Blobs in a directory, the embedded default: `root/ab/cdef…`, read-only files that appear by rename."""

import contextlib
import errno
import filecmp
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from aot.errors import AotError, BlobNotFound, InvalidConfig, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.measure import Measure
from registry.storage.records import DirectoryRecords
from registry.storage.signing import LinkSigner

INCOMING, GONE = "incoming", "gone-"
ABANDONED_AFTER_SECONDS = 24 * 3600.0
SYNC_BYTES = 256 << 20  # a slow disk takes seconds for so much


class DirectoryBlobStore:
    """One directory on a local disk; several processes of one host may share it."""

    enforces_checksum = True

    def __init__(self, root: Path, signer: LinkSigner) -> None:
        self.root = root
        self.signer = signer

    def stat(self, digest: Digest) -> int | None:
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error(error, f"look for {digest}") from error

    def upload_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        return self.signer.link(blob, "PUT", expires_in=expires_in)

    def download_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        return self.signer.link(blob, "GET", expires_in=expires_in)

    def open(self, digest: Digest) -> BinaryIO:
        try:
            return self._path(digest).open("rb")
        except FileNotFoundError:
            raise BlobNotFound(f"the blob store does not hold {digest}", hint="upload it first") from None
        except OSError as error:
            raise _storage_error(error, f"read {digest}") from error

    def version(self, digest: Digest) -> str | None:
        try:
            return _version_of(self._path(digest))
        except OSError as error:
            raise _storage_error(error, f"look for {digest}") from error

    def delete(self, digest: Digest, *, version: str | None = None) -> bool:
        try:
            if version is None:
                self._path(digest).unlink(missing_ok=True)
                return True
            return self._delete_version(self._path(digest), version)
        except OSError as error:
            raise _storage_error(error, f"delete {digest}") from error

    def _delete_version(self, path: Path, version: str) -> bool:
        """Move the file aside first: what is deleted is what was looked at, whatever comes to its name meanwhile."""
        if (found := _version_of(path)) != version:
            return found is None
        aside = self.root / INCOMING / f"{GONE}{secrets.token_hex(8)}"
        aside.parent.mkdir(exist_ok=True)
        try:
            path.rename(aside)
        except FileNotFoundError:
            return True
        if same := _version_of(aside) == version:
            aside.unlink(missing_ok=True)
        else:
            _put_back(aside, path)
        return same

    @contextmanager
    def incoming(self, blob: Blob) -> Iterator[Measure]:
        """Write a blob; leaving the block verifies, syncs and renames it. On any failure nothing is left."""
        temporary: Path | None = None
        try:
            (self.root / INCOMING).mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.root / INCOMING)
            temporary = Path(name)
            with os.fdopen(descriptor, "wb") as file:
                measure = Measure(blob, _Syncing(file))
                yield measure
                measure.finish()
                file.flush()
                os.fsync(file.fileno())
            self._adopt(temporary, blob)
        except OSError as error:
            raise _storage_error(error, f"store {blob.digest}") from error
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def sweep_incoming(self, *, older_than_seconds: float = ABANDONED_AFTER_SECONDS) -> int:
        """Remove the unfinished uploads that a crash left behind, and return how many there were."""
        removed = 0
        for path in (self.root / INCOMING).glob("*"):
            with contextlib.suppress(OSError):
                # What is being deleted has the age of its upload, but for when it was moved there.
                changed = path.stat().st_ctime if path.name.startswith(GONE) else path.stat().st_mtime
                if time.time() - changed > older_than_seconds:
                    path.unlink()
                    removed += 1
        return removed

    def records(self) -> DirectoryRecords:
        return DirectoryRecords(self.root / "records")

    def _adopt(self, temporary: Path, blob: Blob) -> None:
        final = self._path(blob.digest)
        if self.stat(blob.digest) == blob.size_bytes and _is_same(temporary, final):
            return  # create if absent: a second upload of the same bytes changes nothing
        # Other bytes under this name, or unreadable ones, were damaged on disk: those hashed just now replace them.
        final.parent.mkdir(exist_ok=True)
        temporary.chmod(0o444)
        temporary.rename(final)
        _sync_directory(final.parent)

    def _path(self, digest: Digest) -> Path:
        return self.root / digest.hex[:2] / digest.hex[2:]


class _Syncing:
    """A file that goes to the disk while it is written: who sends gigabytes shall not wait for all of it at the end.

    Its sender gives up an answer that takes longer than half a minute, and would send everything again.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unsynced_bytes = 0

    def write(self, chunk: bytes) -> int:
        written = self._file.write(chunk)
        self._unsynced_bytes += written
        if self._unsynced_bytes >= SYNC_BYTES:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._unsynced_bytes = 0
        return written


def _version_of(path: Path) -> str | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    # Every upload is a file of its own. An inode may be used again, hence the times.
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _is_same(one: Path, other: Path) -> bool:
    """Whether both hold the same bytes. What cannot be read, or is gone by now, does not."""
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _put_back(aside: Path, path: Path) -> None:
    """Give the file its name again, unless it came once more meanwhile: these bytes are the same."""
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not path.exists():
            aside.rename(path)
    aside.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    # Without it, a power cut may forget the rename although the bytes are on disk.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(error: OSError, wish: str) -> AotError:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StorageUnavailable(
                f"could not {wish}: {reason}", hint="free space in the registry's data directory; uploads are retried"
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return InvalidConfig(
                f"could not {wish}: {reason}", hint="the registry must be able to write its data directory"
            )
    return StorageUnavailable(f"could not {wish}: {reason}", hint="check the disk of the registry's data directory")
