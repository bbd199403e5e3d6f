"""`aot.lock`: names pinned to digests, written by the CI step and read by the pod."""

from typing import TypeVar

from aot.errors import MalformedDocument
from aot.schema.codec import Document, FormatProbe, always, decode, encode_pretty
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.names import Name, Reference

LOCK_FORMAT = 1

T = TypeVar("T")


class LockEntry(Document, kw_only=True):
    """One target: the bundle that answers for `reference` on `profile`."""

    reference: Reference
    profile: Name
    bundle: Digest
    build_key: BuildKey
    factors: tuple[Factor, ...] = ()  # to explain which one changed between two locks
    frozen: bool = False


class Lock(Document, kw_only=True):
    """Entries in the order of reference and profile; `trusted_keys` are the public keys that may have signed them."""

    format: int = always(LOCK_FORMAT)
    entries: tuple[LockEntry, ...]
    trusted_keys: tuple[str, ...] = ()

    def entries_for(self, reference: Reference) -> tuple[LockEntry, ...]:
        """The entries of that model: by namespace, name and tag, or by digest."""
        return tuple(
            entry for entry in self.entries if reference in (entry.reference, entry.reference.pinned_to(entry.bundle))
        )


def encode_lock(lock: Lock) -> bytes:
    """Return the file's bytes: indented, in one order, so that a review shows what moved and nothing else."""
    entries = tuple(sorted(lock.entries, key=lambda entry: (entry.reference, entry.profile)))
    return encode_pretty(Lock(format=lock.format, entries=entries, trusted_keys=tuple(sorted(lock.trusted_keys))))


def decode_lock(content: bytes) -> Lock:
    """Raises MalformedDocument, also for a format this version does not read."""
    version = _decode(content, FormatProbe).format
    if version != LOCK_FORMAT:
        raise MalformedDocument(
            f"the lock file has format {version}, this version reads {LOCK_FORMAT}",
            hint="update aot, or write the lock again with `aot ensure`",
            details={"path": "$.format"},
        )
    return _decode(content, Lock)


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return decode(content, kind, what="lock file")
    except MalformedDocument as error:
        raise MalformedDocument(
            error.message, hint="restore it, or write it again with `aot ensure`", details=error.details
        ) from error
