"""Copies inside an S3 bucket, bound to one version of what is copied. Large ones go in parts, over several calls.

Stores differ in what they make of that condition: `probe` tries it, and `bound` tells.

How far a large copy has come is this process's own knowledge: after a restart it begins again, and retention gives up
what was left open.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from aot.schema.spec import Blob
from registry.storage.place import MIB
from registry.storage.s3_answers import code_of, is_passing, status_of, translated

# S3 copies 5 GiB in one request, which takes it longer than a connection may be silent (`read_timeout`).
LARGEST_COPY_BYTES = 256 * MIB
PART_BYTES = 256 * MIB
AT_ONCE = 4
_UNKNOWN_HEADER = {"NotImplemented", "InvalidArgument", "InvalidRequest"}
# The version is not there any more, nor anything else.
_OTHER_VERSION = (404, 412)
_NO_VERSION = f'"{"0" * 32}"'


class _NotCopied(Exception):
    """The store has copied no part, and says nothing of it."""


class _Wish(NamedTuple):
    source: str
    to: str
    version: str


@dataclass
class _Going:
    upload: str
    parts: dict[int, str] = field(default_factory=dict)


class S3Copies:
    def __init__(
        self,
        client: Any,
        bucket: str,
        *,
        encryption: Mapping[str, str],
        largest_copy_bytes: int = LARGEST_COPY_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._encryption = dict(encryption)
        self.largest_copy_bytes = largest_copy_bytes
        self.part_bytes = part_bytes
        self.bound = False
        self.in_parts: bool | None = None  # unknown until the first part; what a store could once, it can
        self._going: dict[_Wish, _Going] = {}

    def probe(self, source: str, *, to: str) -> None:
        """Find out whether this store refuses to copy another version of `source`, whole and in parts.

        Where it does not, `to` exists then. Any other refusal counts as none: what is copied is hashed again.
        """
        place = {"Bucket": self._bucket, "Key": to}
        other = {"CopySource": {"Bucket": self._bucket, "Key": source}, "CopySourceIfMatch": _NO_VERSION}
        with translated(f"copy in bucket {self._bucket}"), suppress(ClientError):
            if _refuses(self._client.copy_object, **place, **other, **self._encryption):
                upload = self._client.create_multipart_upload(**place, **self._encryption)["UploadId"]
                try:
                    self.bound = _refuses(
                        self._client.upload_part_copy, **place, **other, UploadId=upload, PartNumber=1
                    )
                finally:
                    self._client.abort_multipart_upload(**place, UploadId=upload)

    def copy(self, blob: Blob, source: str, *, to: str, version: str, seconds: float) -> bool | None:
        """True once it is there; None after so many seconds, the next call goes on; False for another version."""
        wish = _Wish(source, to, version)
        with translated(f"copy {source} in bucket {self._bucket}"):
            try:
                if blob.size_bytes > self.largest_copy_bytes and self.in_parts is not False:
                    try:
                        return self._copy_parts(blob, wish, seconds=seconds)
                    except _NotCopied:
                        if self.in_parts:
                            return None  # the next call asks for that part again
                    self._begin_whole(wish)
                place = {"Bucket": self._bucket, "Key": to}
                self._bound(self._client.copy_object, wish, **place, **self._encryption)
            except ClientError as error:
                if not is_passing(error):  # else the next call goes on with the parts that are there
                    self._going.pop(wish, None)  # what was begun is given up by retention
                if status_of(error) in _OTHER_VERSION:
                    return False
                raise
        return True

    def _begin_whole(self, wish: _Wish) -> None:
        """Give up the parts, and from now on copy everything at once: the store knows no copies of parts."""
        self.in_parts = False
        if going := self._going.pop(wish, None):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=wish.to, UploadId=going.upload)

    def _copy_parts(self, blob: Blob, wish: _Wish, *, seconds: float) -> bool | None:
        place = {"Bucket": self._bucket, "Key": wish.to}
        if wish not in self._going:
            begun = self._client.create_multipart_upload(**place, **self._encryption)
            self._going[wish] = _Going(begun["UploadId"])
        going = self._going[wish]
        place["UploadId"] = going.upload
        count = -(-blob.size_bytes // self.part_bytes)
        left = [number for number in range(1, count + 1) if number not in going.parts]

        def copy_part(number: int) -> str:
            start = (number - 1) * self.part_bytes
            stop = min(start + self.part_bytes, blob.size_bytes)
            within = {"PartNumber": number, "CopySourceRange": f"bytes={start}-{stop - 1}"}
            done = self._bound(self._client.upload_part_copy, wish, **place, **within).get("CopyPartResult", {})
            if "ETag" not in done:  # a store that takes the request for a part without bytes
                raise _NotCopied
            self.in_parts = True
            return str(done["ETag"])

        until = time.monotonic() + seconds
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(left), AT_ONCE):
                if first and time.monotonic() > until:
                    return None
                some = left[first : first + AT_ONCE]
                going.parts |= dict(zip(some, pool.map(copy_part, some), strict=True))
        parts = [{"PartNumber": number, "ETag": going.parts[number]} for number in sorted(going.parts)]
        self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
        del self._going[wish]
        return True

    def _bound(self, call: Any, wish: _Wish, **parameters: Any) -> Any:
        """The call, on condition that the source is the version that was read; without, where a store knows none."""
        source = {"Bucket": self._bucket, "Key": wish.source}
        try:
            return call(CopySource=source, CopySourceIfMatch=wish.version, **parameters)
        except ClientError as error:
            if self.bound or code_of(error) not in _UNKNOWN_HEADER:
                raise
        return call(CopySource=source, **parameters)


def _refuses(call: Any, **parameters: Any) -> bool:
    """Whether the condition does not hold for the store. Raises ClientError for every other refusal."""
    try:
        call(**parameters)
    except ClientError as error:
        if status_of(error) == 412:
            return True
        raise
    return False
