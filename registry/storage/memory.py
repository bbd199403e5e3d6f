"""Blobs in memory, for tests. Served over HTTP like the directory store, so that its links are real."""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import BinaryIO

from aot.errors import BlobNotFound
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.measure import Measure
from registry.storage.records import MemoryRecords
from registry.storage.signing import LinkSigner


class MemoryBlobStore:
    enforces_checksum = True

    def __init__(self, signer: LinkSigner) -> None:
        self.signer = signer
        self._contents: dict[Digest, bytes] = {}
        self._puts: Counter[Digest] = Counter()
        self._records = MemoryRecords()

    def stat(self, digest: Digest) -> int | None:
        content = self._contents.get(digest)
        return None if content is None else len(content)

    def upload_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        return self.signer.link(blob, "PUT", expires_in=expires_in)

    def download_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        return self.signer.link(blob, "GET", expires_in=expires_in)

    def open(self, digest: Digest) -> BinaryIO:
        if digest not in self._contents:
            raise BlobNotFound(f"the blob store does not hold {digest}", hint="upload it first")
        return io.BytesIO(self._contents[digest])

    def version(self, digest: Digest) -> str | None:
        return str(self._puts[digest]) if digest in self._contents else None

    def delete(self, digest: Digest, *, version: str | None = None) -> bool:
        if version is not None and self.version(digest) not in (version, None):
            return False
        self._contents.pop(digest, None)
        return True

    def records(self) -> MemoryRecords:
        return self._records

    @contextmanager
    def incoming(self, blob: Blob) -> Iterator[Measure]:
        buffer = io.BytesIO()
        measure = Measure(blob, buffer)
        yield measure
        measure.finish()
        if blob.digest not in self._contents:
            self._contents[blob.digest] = buffer.getvalue()
            self._puts[blob.digest] += 1
