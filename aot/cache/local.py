"""The cache as the loader sees it."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aot.cache import documents
from aot.cache.documents import RememberedTag
from aot.cache.holds import Hold
from aot.cache.locks import locked_in_turn
from aot.cache.renames import unless_stale
from aot.errors import DigestMismatch, InvalidConfig, LocalStorageFull
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.spec import Blob

if TYPE_CHECKING:
    from aot.cache.evict import Evicted
    from aot.cache.incoming import Incoming
    from aot.schema.wire.signed import SignedManifest

TOUCH_EVERY_SECONDS = 60.0
FILL_WAIT_SECONDS = 120.0  # without a byte: a network file system tells sizes a minute late
DEFAULT_LIMIT_BYTES = 50 << 30


class LocalCache:
    """Content by digest under `root`, at most `limit_bytes` after an eviction.

    Making one touches nothing; directories appear with the first write. Reading works from a directory that cannot
    be written, an image's layer for example.
    """

    def __init__(
        self, root: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, fill_wait_seconds: float = FILL_WAIT_SECONDS
    ) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self.fill_wait_seconds = fill_wait_seconds

    # Blobs

    def path_of(self, digest: Digest) -> Path | None:
        """Where the blob lies, or None when it is absent. Counts as use, noted at most once a minute."""
        path = self._blob_path(digest)
        try:
            used_at = path.stat().st_mtime
        except OSError:
            return None
        if time.time() - used_at > TOUCH_EVERY_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return path

    def missing(self, blobs: Iterable[Blob]) -> tuple[Blob, ...]:
        """Those that are absent or have another size than they should."""
        return tuple(blob for blob in blobs if not self._has(blob))

    def incoming(self, blob: Blob) -> "AbstractContextManager[Incoming]":
        """Write `blob`; leaving the block compares size and digest, then gives it its name.

        Raises SizeMismatch, DigestMismatch, LocalStorageFull or InvalidConfig, and nothing is left behind.
        """
        from aot.cache.incoming import incoming

        return incoming(self.root, blob, self._blob_path(blob.digest))

    def ensure(self, blob: Blob, fetch: "Callable[[Incoming], None]") -> Path:
        """Return the path of `blob`, letting `fetch` write it when it is absent.

        Of the processes and threads that want the same blob, one fetches and the others wait for it, for as long as it
        lives and bytes arrive. When none has for `fill_wait_seconds`, one of them fetches, and the others wait for that
        one. After a few that have failed each fetches for itself. Raises what `fetch` raises, and what `incoming` does.
        """
        if self._has(blob):
            return self._blob_path(blob.digest)
        with locked_in_turn(
            self._lock_path(blob.digest),
            stall_seconds=self.fill_wait_seconds,
            progress=lambda: self._arrivals(blob.digest),
        ):
            if not self._has(blob):
                self._fill(blob, fetch)
        return self._blob_path(blob.digest)

    def make_room(self, blobs: Iterable[Blob]) -> None:
        """Make true that those of `blobs` that are absent fit on the disk, before the first of them is fetched.

        The least recently used gives way, unless it is held; what another process has written of them needs no room
        again. Raises LocalStorageFull.
        """
        from aot.cache.faults import free_bytes, require_room

        missing = {blob.digest: blob.size_bytes for blob in self.missing(blobs)}
        free = free_bytes(self.root)
        if free is None or sum(missing.values()) <= free or (wanted := self._unwritten_bytes(missing)) <= free:
            return
        self.evict(limit_bytes=max(0, self.used_bytes() - (wanted - free)))
        # Remains of writers that died were among what is written.
        require_room(self.root, self._unwritten_bytes(missing))

    def verified_path(self, digest: Digest) -> Path | None:
        """Like `path_of`, after hashing the file again: for bytes that are about to be executed.

        Raises DigestMismatch when the file is damaged, which removes it, so that `ensure` can fetch it anew.
        """
        path = self.path_of(digest)
        if path is None:
            return None
        found = _digest_of(path)
        if found != digest:
            raise DigestMismatch(
                f"the cache holds {found} under the name {digest}",
                hint=_after_damage(path),
                details={"wanted": digest, "found": found},
            )
        return path

    def verify(self, digest: Digest) -> bool:
        """True when the blob is there and whole. A damaged one is removed."""
        try:
            return self.verified_path(digest) is not None
        except DigestMismatch:
            return False

    # Manifests and tags

    def put_manifest(self, signed: "SignedManifest") -> None:
        """Keep a manifest as it came, envelope included. Raises LocalStorageFull or InvalidConfig."""
        documents.write_manifest(self.root, signed)

    def get_manifest(self, digest: Digest) -> "SignedManifest | None":
        """The manifest with that digest, or None. Its envelope is for the caller to verify."""
        return documents.read_manifest(self.root, digest)

    def remember_tag(self, reference: Reference, bundles: Iterable[Digest]) -> None:
        """Note what the registry resolves `reference` to now. Raises LocalStorageFull or InvalidConfig."""
        tag = RememberedTag(reference=reference, bundles=tuple(bundles), seen_at=datetime.now(UTC))
        documents.write_tag(self.root, tag)

    def recall_tag(self, reference: Reference) -> RememberedTag | None:
        """What `reference` stood for when it was last resolved. Whoever uses it marks it stale in the receipt."""
        return documents.read_tag(self.root, reference)

    # Use and eviction

    def hold(self, digests: Iterable[Digest]) -> Hold:
        """Keep blobs, manifests and views of these digests from eviction until the Hold is closed.

        Hold first, then ask for paths: what was there before may have gone.
        """
        return Hold(self.root, digests)

    def view_path(self, bundle: Digest, artifact: int) -> Path:
        """Where the files of one artifact may be laid out under their own names. Hold `bundle` meanwhile."""
        return self.root / "views" / f"{bundle.hex}-{artifact}"

    def evict(self, *, limit_bytes: int | None = None) -> "Evicted":
        """Remove the least recently used until the cache is within its bound. Never raises."""
        from aot.cache.evict import evict

        return evict(self.root, limit_bytes=self.limit_bytes if limit_bytes is None else limit_bytes)

    def used_bytes(self) -> int:
        from aot.cache.evict import used_bytes

        return used_bytes(self.root)

    def _fill(self, blob: Blob, fetch: "Callable[[Incoming], None]") -> None:
        try:
            self._write(blob, fetch)
        except LocalStorageFull:
            # Other models' blobs are worth less than this one: make room once, then give up.
            freed = self.evict(limit_bytes=max(0, self.used_bytes() - blob.size_bytes)).freed_bytes
            if not freed:
                raise
            self._write(blob, fetch)

    def _write(self, blob: Blob, fetch: "Callable[[Incoming], None]") -> None:
        with self.incoming(blob) as writer:
            fetch(writer)

    def _unwritten_bytes(self, sizes: Mapping[Digest, int]) -> int:
        from aot.cache.incoming import arrived_bytes

        return sum(max(0, size - arrived_bytes(self.root, digest)) for digest, size in sizes.items())

    def _arrivals(self, digest: Digest) -> Hashable:
        from aot.cache.incoming import arrivals

        return arrivals(self.root, digest)

    def _has(self, blob: Blob) -> bool:
        path = self.path_of(blob.digest)
        if path is None:
            return False
        try:
            return path.stat().st_size == blob.size_bytes
        except OSError:
            return False

    def _blob_path(self, digest: Digest) -> Path:
        return self.root / "blobs" / digest.hex[:2] / digest.hex[2:]

    def _lock_path(self, digest: Digest) -> Path:
        return self.root / "locks" / digest.hex


def _after_damage(path: Path) -> str:
    """Remove the file, and return what to do next."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return "it cannot be removed: set AOT_CACHE_DIR to a directory that this process may write, and fetch it there"
    return "it was removed and can be fetched again; if this repeats, check the disk"


def _digest_of(path: Path) -> Digest:
    try:
        return unless_stale(lambda: _hash(path))
    except OSError as error:
        raise InvalidConfig(
            f"could not read {path}: {error.strerror or error}", hint="check the permissions of AOT_CACHE_DIR"
        ) from error


def _hash(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest("sha256:" + hashlib.file_digest(file, "sha256").hexdigest())
