"""The seam between the registry and the bytes. The service hands out links; it does not carry blobs.

Every store passes tests/contract/test_blob_store.py.
"""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import BinaryIO, Protocol, runtime_checkable

from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.signing import LinkSigner


class BlobStore(Protocol):
    """Blobs by digest. A stored blob is never replaced by other bytes.

    Every method raises StorageUnavailable when the store cannot tell, and InvalidConfig when it refuses the
    registry's own credentials.
    """

    enforces_checksum: bool
    """True when an upload of other bytes than the digest names is refused by the store itself.

    Where it is False, the registry must hash a blob (`open`) before it counts as stored.
    """

    def stat(self, digest: Digest) -> int | None:
        """Size in bytes, or None when the blob is absent."""

    def upload_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        """A link to PUT exactly these bytes. Putting a blob that is there already succeeds or answers 412."""

    def download_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        """A link to GET the blob, whole or by Range."""

    def open(self, digest: Digest) -> BinaryIO:
        """A readable stream over the blob, for the caller to close. Raises BlobNotFound."""

    def version(self, digest: Digest) -> str | None:
        """What tells these bytes from any that are put in their place later, equal ones too; None where it is absent.

        It tells no damage: a disk changes bytes without a word.
        """

    def delete(self, digest: Digest, *, version: str | None = None) -> bool:
        """Make sure that the blob is absent; with a `version`, that this one is.

        False where another version lies there by now, which stays. Safe to repeat.
        """


class BlobWriter(Protocol):
    def write(self, chunk: bytes) -> None:
        """Append. Raises SizeMismatch as soon as there is more than was announced."""


@runtime_checkable
class ServedStore(Protocol):
    """What a store adds whose links lead back to the registry: `link_routes` serves it."""

    signer: LinkSigner

    def stat(self, digest: Digest) -> int | None: ...

    def open(self, digest: Digest) -> BinaryIO: ...

    def incoming(self, blob: Blob) -> AbstractContextManager[BlobWriter]:
        """Write a blob; leaving the block compares size and digest, then makes it visible.

        Raises SizeMismatch or DigestMismatch, and nothing is stored.
        """
