"""Uploads in parts to an S3 bucket. The store itself is the account of them: no row says which are open.

A key is one namespace's. Of several open uploads of it the oldest is the one that the namespace goes on with; the
others are given up by retention when they are old.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from threading import Lock, Thread
from typing import Any, NamedTuple

import structlog
from botocore.exceptions import ClientError

from aot.errors import BlobPending
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link, Part
from registry.storage.place import S3Place
from registry.storage.s3_answers import status_of, translated

JOIN_SECONDS = 10.0
log = structlog.get_logger()
Presign = Callable[[str, dict[str, Any], timedelta], str]


class Upload(NamedTuple):
    key: str
    id: str
    begun_at: datetime


class Slice(NamedTuple):
    number: int
    start: int
    size_bytes: int


class Stored(NamedTuple):
    size_bytes: int
    etag: str


class S3PartUploads:
    def __init__(self, client: Any, place: S3Place, *, presign: Presign, encryption: Mapping[str, str]) -> None:
        self._client = client
        self._place = place
        self._bucket = place.bucket
        self._presign = presign
        self._encryption = dict(encryption)
        self._lock = Lock()
        self._joining: dict[str, Future[bool]] = {}

    def link(self, blob: Blob, key: str, *, expires_in: timedelta) -> Link:
        """A link with what is missing of the oldest open upload of `key`, or of a new one."""
        upload = self._oldest(key) or self.begin(key)
        there = self.stored(upload)
        slices = slices_of(blob, self._place)
        missing = [part for part in slices if not _is_there(part, there)]
        # Nothing is missing where the last part arrived at this moment: it may be put again.
        parts = tuple(self._part(upload, part, expires_in) for part in missing or slices[-1:])
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url="", method="PUT", parts=parts)

    def complete(self, blob: Blob, key: str) -> bool:
        """True where it was this call that made the object; parts of it may be missing.

        Without a condition: what lies at a key of its namespace is no blob yet, and nobody counts on it. Raises
        BlobPending while the store joins the parts, which takes some minutes for many gigabytes (Amazon S3 API
        Reference, CompleteMultipartUpload): whoever asks hangs up sooner, and may ask again.
        """
        # First: at the end of a join a store may list neither the upload nor the object for a moment.
        joining = self._joining.get(key) or self._begun_joining(blob, key)
        if joining is None:
            return False
        try:
            return joining.result(timeout=JOIN_SECONDS)
        except TimeoutError:
            raise BlobPending(
                f"the store still joins the parts of {blob.digest}",
                hint="send the request again in a few seconds",
                details={"digests": [blob.digest]},
            ) from None

    def _begun_joining(self, blob: Blob, key: str) -> "Future[bool] | None":
        """None where there is no upload, or parts of it are missing."""
        upload = self._oldest(key)
        if upload is None:
            return None
        there = self.stored(upload)
        slices = slices_of(blob, self._place)
        if not all(_is_there(part, there) for part in slices):
            return None
        wanted = {"Parts": [{"PartNumber": part.number, "ETag": there[part.number].etag} for part in slices]}
        return self._joining_of(upload, wanted)

    def _joining_of(self, upload: Upload, wanted: dict[str, Any]) -> "Future[bool]":
        """The one attempt of this process at joining these parts, which goes on when nobody waits for it."""
        with self._lock:
            if (future := self._joining.get(upload.key)) is None:
                future = Future()
                # Noted once it runs, and it waits for the lock at its end: one that cannot start is none to wait for.
                Thread(target=self._join, args=(upload, wanted, future), name="join-parts", daemon=True).start()
                self._joining[upload.key] = future
            return future

    def _join(self, upload: Upload, wanted: dict[str, Any], told: "Future[bool]") -> None:
        joined, failure = False, None
        try:
            joined = self._joined(upload, wanted)
        except BaseException as error:
            log.warning("parts-not-joined", key=upload.key, error=str(error))  # maybe nobody waits any more
            failure = error
        with self._lock:
            del self._joining[upload.key]  # first: whoever asks once it has failed asks for another attempt
        if failure is None:
            told.set_result(joined)
        else:
            told.set_exception(failure)

    def _joined(self, upload: Upload, wanted: dict[str, Any]) -> bool:
        with translated(f"complete {upload.key} in bucket {self._bucket}"):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=upload.key, UploadId=upload.id, MultipartUpload=wanted
                )
            except ClientError as error:
                if status_of(error) == 404:  # another registry was faster, or retention gave it up
                    return False
                raise
        return True

    def begun(self, prefix: str) -> Iterator[Upload]:
        """Every open upload of a key that begins with `prefix`."""
        pages = self._client.get_paginator("list_multipart_uploads")
        with translated(f"list the uploads of bucket {self._bucket}"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for found in page.get("Uploads", ()):
                    if found["Key"].startswith(prefix):  # not every store honours the prefix
                        yield Upload(found["Key"], found["UploadId"], found["Initiated"])

    def give_up(self, key: str, upload: str) -> None:
        with translated(f"give up an upload in parts in bucket {self._bucket}"):
            try:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
            except ClientError as error:
                if status_of(error) != 404:
                    raise

    def begin(self, key: str) -> Upload:
        """An open upload of `key`: a new one, or the one that somebody else began at the same time."""
        with translated(f"begin an upload in parts in bucket {self._bucket}"):
            begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, **self._encryption)
        return self._oldest(key) or Upload(key, begun["UploadId"], datetime.max)

    def stored(self, upload: Upload) -> dict[int, Stored]:
        """The parts that have arrived; none of an upload that is over."""
        pages = self._client.get_paginator("list_parts")
        found: dict[int, Stored] = {}
        with translated(f"list the parts of {upload.key} in bucket {self._bucket}"):
            try:
                for page in pages.paginate(Bucket=self._bucket, Key=upload.key, UploadId=upload.id):
                    found |= {part["PartNumber"]: Stored(part["Size"], part["ETag"]) for part in page.get("Parts", ())}
            except ClientError as error:
                if status_of(error) != 404:
                    raise
        return found

    def _oldest(self, key: str) -> Upload | None:
        found = [upload for upload in self.begun(key) if upload.key == key]
        return min(found, key=lambda upload: (upload.begun_at, upload.id), default=None)

    def _part(self, upload: Upload, part: Slice, expires_in: timedelta) -> Part:
        bound = {
            "Bucket": self._bucket,
            "Key": upload.key,
            "UploadId": upload.id,
            "PartNumber": part.number,
            "ContentLength": part.size_bytes,
        }
        return Part(start=part.start, size_bytes=part.size_bytes, url=self._presign("upload_part", bound, expires_in))


def slices_of(blob: Blob, place: S3Place) -> list[Slice]:
    """How a blob is cut: always alike for the same size, so that an interrupted upload can be gone on with."""
    size = place.part_bytes_of(blob.size_bytes)
    starts = range(0, blob.size_bytes, size)
    return [Slice(number, start, min(size, blob.size_bytes - start)) for number, start in enumerate(starts, 1)]


def _is_there(part: Slice, there: Mapping[int, Stored]) -> bool:
    return part.number in there and there[part.number].size_bytes == part.size_bytes
