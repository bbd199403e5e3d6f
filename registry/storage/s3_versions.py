"""Versions of S3 objects, and deletes of one version alone.

A version is ETag and time of the last change: of equal bytes that were put twice the ETag is one, and the times differ,
by at least a second. Stores compare the ETag themselves in a delete (`If-Match`, in Amazon's general purpose buckets
since September 2025), or ignore the condition, or do not know it. So both are compared here, right before the delete,
and the store is given the condition besides. Versioned buckets keep what a delete hides, by their own rules.
"""

from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from registry.storage.s3_answers import code_of, status_of, translated

_OTHER_VERSION = (404, 412)
_UNKNOWN_HEADER = {"NotImplemented", "InvalidArgument", "InvalidRequest"}


def version_of(answer: Any) -> str:
    """The version that an answer about one object tells: of HEAD or GET, or an entry of a listing."""
    changed: datetime = answer["LastModified"]
    # Listings of some stores have milliseconds, headers never.
    return f"{answer['ETag']} {int(changed.timestamp())}"


def etag_of(version: str) -> str:
    return version.rpartition(" ")[0]


class S3Versions:
    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def find(self, key: str) -> str | None:
        with translated(f"look for {key} in bucket {self._bucket}"):
            try:
                return version_of(self._client.head_object(Bucket=self._bucket, Key=key))
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise

    def delete(self, key: str, version: str | None) -> bool:
        """As `BlobStore.delete`."""
        if version is not None and (found := self.find(key)) != version:
            return found is None
        with translated(f"delete {key} from bucket {self._bucket}"):
            return self._delete(key, version)

    def _delete(self, key: str, version: str | None) -> bool:
        place = {"Bucket": self._bucket, "Key": key}
        if version is not None:
            try:
                self._client.delete_object(**place, IfMatch=etag_of(version))
            except ClientError as error:
                if status_of(error) in _OTHER_VERSION:
                    return status_of(error) == 404
                if code_of(error) not in _UNKNOWN_HEADER:
                    raise
            else:
                return True
        self._client.delete_object(**place)
        return True
