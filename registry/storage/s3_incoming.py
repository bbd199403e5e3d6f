"""What namespaces put into an S3 bucket before it was hashed: `prefix/incoming/NAMESPACE/sha256/ab/cdef...`.

A namespace has links to its own keys alone, and nobody has one to where blobs are.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, BinaryIO, cast

from botocore.exceptions import ClientError

from aot.errors import AotError, BlobNotFound
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.parts import Arrival
from registry.storage.s3_answers import ResumedBody, head, status_of, translated
from registry.storage.s3_copies import S3Copies
from registry.storage.s3_parts import S3PartUploads
from registry.storage.s3_versions import S3Versions, etag_of, version_of

Put = Callable[[Blob, str, timedelta], Link]
SHA256 = "sha256/"


@dataclass(frozen=True)
class S3Incoming:
    """`put` signs a link to one PUT of a blob to a key."""

    namespace: Namespace
    client: Any = field(repr=False)
    bucket: str
    prefix: str
    largest_put_bytes: int
    parts: S3PartUploads = field(repr=False)
    copies: S3Copies = field(repr=False)
    versions: S3Versions = field(repr=False)
    put: Put = field(repr=False)

    def link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        if blob.size_bytes > self.largest_put_bytes:
            return self.parts.link(blob, self._key(blob.digest), expires_in=expires_in)
        return self.put(blob, self._key(blob.digest), expires_in)

    def complete(self, blob: Blob) -> int | None:
        key = self._key(blob.digest)
        found = head(self.client, self.bucket, key)
        if found is None and blob.size_bytes > self.largest_put_bytes:
            self.parts.complete(blob, key)
            found = head(self.client, self.bucket, key)  # also where it was another registry that has completed it
        return None if found is None else int(found["ContentLength"])

    def open(self, digest: Digest) -> tuple[BinaryIO, str]:
        key, version = self._key(digest), ""

        def begin(position: int) -> tuple[Any, int]:
            nonlocal version
            same = {"IfMatch": etag_of(version)} if version else {}
            ranged = {"Range": f"bytes={position}-"} if position else {}
            with translated(f"read {key} from bucket {self.bucket}"):
                try:
                    answer = self.client.get_object(Bucket=self.bucket, Key=key, **ranged, **same)
                except ClientError as error:
                    if status_of(error) in (404, 412):
                        raise _not_arrived(digest) from error
                    raise
            if version and version_of(answer) != version:  # a store that ignores the condition, or equal bytes again
                answer["Body"].close()
                raise _not_arrived(digest)
            version = version_of(answer)
            return answer["Body"], int(answer["ContentLength"])

        body = ResumedBody(begin, digest)
        return cast(BinaryIO, io.BufferedReader(body, buffer_size=1 << 20)), version

    def adopt(self, blob: Blob, *, version: str, seconds: float) -> bool | None:
        key = self._key(blob.digest)
        to, etag = key_of(self.prefix, blob.digest), etag_of(version)
        done = self.copies.copy(blob, key, to=to, version=etag, seconds=seconds)
        # Asked again: a store that ignores the condition has copied whatever lay there, if only for a moment.
        return self.versions.find(key) == version if done else done

    def discard(self, digest: Digest, *, version: str) -> bool:
        return self.versions.delete(self._key(digest), version)

    def _key(self, digest: Digest) -> str:
        return key_of(f"{incoming_prefix(self.prefix)}{self.namespace}/", digest)


def _not_arrived(digest: Digest) -> BlobNotFound:
    return BlobNotFound(f"nothing has arrived for {digest}, or it is another version now", hint="upload it first")


def key_of(prefix: str, digest: Digest) -> str:
    return f"{prefix}{SHA256}{digest.hex[:2]}/{digest.hex[2:]}"


def incoming_prefix(prefix: str) -> str:
    return f"{prefix}incoming/"


def parsed(key: str, prefix: str) -> tuple[Digest, Namespace | None] | None:
    """Whose key that is; None for a key that no blob has. Without a namespace: where blobs are."""
    rest, namespace = key.removeprefix(prefix), None
    try:
        if key.startswith(incoming_prefix(prefix)):
            whose, _, rest = key.removeprefix(incoming_prefix(prefix)).partition("/")
            namespace = Namespace.parse(whose)
        digest = Digest.parse("sha256:" + rest.removeprefix(SHA256).replace("/", ""))
    except AotError:
        return None
    where = prefix if namespace is None else f"{incoming_prefix(prefix)}{namespace}/"
    return (digest, namespace) if key == key_of(where, digest) else None


def arrivals(client: Any, bucket: str, prefix: str) -> Iterator[Arrival]:
    pages = client.get_paginator("list_objects_v2")
    with translated(f"list what has arrived in bucket {bucket}"):
        for page in pages.paginate(Bucket=bucket, Prefix=incoming_prefix(prefix)):
            for found in page.get("Contents", ()):
                match parsed(found["Key"], prefix):
                    case (digest, Namespace() as namespace):
                        arrived_at, version = found["LastModified"], version_of(found)
                        yield Arrival(digest=digest, namespace=namespace, arrived_at=arrived_at, version=version)
