"""The seams for stores that take bytes without comparing them: blobs in parts, and all where they compare nothing.

Such bytes come to a place of their own namespace (`Incoming`), where no other namespace's come, and become the blob by
a copy inside the store once the registry has hashed them. So one tenant can neither spoil the upload of another nor
write over what is proven, whatever conditions the store ignores: where a copy is not bound to the version that was
hashed (`KeepsIncoming.binds_copies`), it is hashed once more in its place, to which nobody has a link.

A link of a blob over `largest_put_bytes` lists the parts that are missing; where an earlier upload of the same blob by
the same namespace was interrupted, that is the rest of it. Nobody has to say that the last part has arrived: whoever
asks for the blob next, with `complete`, makes one object of them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, BinaryIO, Protocol, runtime_checkable

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link


@dataclass(frozen=True)
class PartUpload:
    """An upload in parts that is neither complete nor given up. `key`: where in the store."""

    digest: Digest
    id: str
    begun_at: datetime
    key: str
    namespace: Namespace | None = None
    """None: the registry's own copy into place, or an upload that an older registry began."""


@dataclass(frozen=True)
class Arrival:
    """Bytes that a namespace has put whole and that are no blob yet. `arrived_at` by the store's clock.

    `version` as of `Incoming.open`; empty where it was not looked at.
    """

    digest: Digest
    namespace: Namespace
    arrived_at: datetime
    version: str = ""


class Incoming(Protocol):
    """What one namespace puts. Every method raises StorageUnavailable and InvalidConfig as BlobStore."""

    def link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        """A link to PUT the blob, or the parts of it that are missing."""

    def complete(self, blob: Blob) -> int | None:
        """The size of what has arrived, made of its parts where it came in parts; None while some are missing.

        Safe to repeat. Raises BlobPending while the store joins them, which goes on meanwhile.
        """

    def open(self, digest: Digest) -> tuple[BinaryIO, str]:
        """A stream over what has arrived, for the caller to close, and its version. Raises BlobNotFound.

        So does the stream once it is another version.
        """

    def adopt(self, blob: Blob, *, version: str, seconds: float) -> bool | None:
        """Copy that version to where blobs are. None: not all of it yet, call again; False: it is another version.

        One call begins nothing after so many seconds. Without `KeepsIncoming.binds_copies` it may be another version
        in spite of True.
        """

    def discard(self, digest: Digest, *, version: str) -> bool:
        """Remove what has arrived whole. False where another version lies there by now, which stays.

        Safe to repeat.
        """


@runtime_checkable
class KeepsIncoming(Protocol):
    """Every method raises StorageUnavailable and InvalidConfig as BlobStore."""

    largest_put_bytes: int

    @property
    def binds_copies(self) -> bool:
        """Whether `Incoming.adopt` copies the version that it is told, or nothing."""

    def incoming_of(self, namespace: Namespace) -> Incoming: ...

    def arrivals(self) -> Iterator[Arrival]:
        """What has arrived, of every namespace."""

    def part_uploads(self) -> Iterator[PartUpload]:
        """The uploads in parts of blobs of this store."""

    def give_up(self, upload: PartUpload) -> None:
        """Remove the parts. Safe to repeat."""


@runtime_checkable
class TriesParts(Protocol):
    def part_link(self, *, expires_in: timedelta) -> AbstractContextManager[str]:
        """A link to PUT the first part of an upload that is given up when the block ends."""


def comes_in_parts(blob: Blob, store: Any) -> bool:
    return isinstance(store, KeepsIncoming) and blob.size_bytes > store.largest_put_bytes


def incoming_for(blob: Blob, store: Any, namespace: Namespace) -> Incoming | None:
    """Where the namespace puts this blob; None where the store compares its digest and it goes to its place at once."""
    if isinstance(store, KeepsIncoming) and (comes_in_parts(blob, store) or not store.enforces_checksum):
        return store.incoming_of(namespace)
    return None
