"""Versions of S3 objects, and deletes of one version alone.

A version is ETag and time of the last change, in seconds. Of other bytes it is always another. Of equal bytes that were
put twice the ETag is one, and within one second the time too: then the second goes with the first. Nobody counts on it,
because the blob's row says `deleting` meanwhile, and it is asked for again.

Stores compare the ETag themselves in a delete (`If-Match`, in Amazon's general purpose buckets since September 2025),
or ignore the condition, or refuse it in words of their own. So both are compared here, right before the delete, and the
store is given the condition besides. Versioned buckets keep what a delete hides, by their own rules.
"""

from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from registry.storage.s3_answers import code_of, head, is_passing, status_of, translated

_OTHER_VERSION = (404, 412)
_NOT_ALLOWED = (401, 403)


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
        found = head(self._client, self._bucket, key)
        return None if found is None else version_of(found)

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
                if not _knows_no_condition(error):
                    raise
            except ParamValidationError:
                pass  # a botocore of before stores had it
            else:
                return True
        self._client.delete_object(**place)
        return True


def _knows_no_condition(error: ClientError) -> bool:
    """Whether the store may refuse the condition and not the delete: codes for that are many, and none is certain."""
    if status_of(error) == 501 or code_of(error) == "NotImplemented":
        return True
    return status_of(error) not in _NOT_ALLOWED and not is_passing(error)
