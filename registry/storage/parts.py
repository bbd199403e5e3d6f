"""The seams for stores whose largest blobs arrive in parts.

`upload_link` of a blob over `largest_put_bytes` lists the parts that are missing; where an earlier upload of the same
blob was interrupted, that is the rest of it. Nobody has to say that the last part has arrived: whoever asks for the
blob next, with `complete`, makes one object of them. Parts bind their size and not the digest of the whole, so the
registry hashes the blob before it counts as stored, whatever the store enforces.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from aot.schema.digest import Digest
from aot.schema.spec import Blob


@dataclass(frozen=True)
class PartUpload:
    """An upload in parts that is neither complete nor given up."""

    digest: Digest
    id: str
    begun_at: datetime


@runtime_checkable
class TakesParts(Protocol):
    """Every method raises StorageUnavailable and InvalidConfig as BlobStore."""

    largest_put_bytes: int

    def complete(self, blob: Blob) -> int | None:
        """Make the blob of its parts, and return its size; None while parts are missing. Safe to repeat."""

    def part_uploads(self) -> Iterator[PartUpload]:
        """The uploads in parts of blobs of this store."""

    def give_up(self, upload: PartUpload) -> None:
        """Remove the parts. Safe to repeat."""


@runtime_checkable
class TriesParts(Protocol):
    def part_link(self, *, expires_in: timedelta) -> AbstractContextManager[str]:
        """A link to PUT the first part of an upload that is given up when the block ends."""


def comes_in_parts(blob: Blob, store: Any) -> bool:
    return isinstance(store, TakesParts) and blob.size_bytes > store.largest_put_bytes
