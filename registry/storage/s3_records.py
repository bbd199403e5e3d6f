"""The registry's records in an S3 bucket."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from botocore.exceptions import ClientError

from aot.errors import StorageUnavailable
from registry.storage.s3_answers import status_of, translated

READ_AGAIN = 2  # as often as boto3 asks again


class S3Records:
    """Records under one prefix of the bucket. `encryption` goes with everything that is written."""

    def __init__(self, client: Any, *, bucket: str, prefix: str, encryption: Mapping[str, str]) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._encryption = dict(encryption)

    def put(self, name: str, content: bytes) -> None:
        with translated(f"write the record {name} to bucket {self._bucket}"):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content, **self._encryption)

    def find(self, name: str) -> bytes | None:
        wish = f"read the record {name} from bucket {self._bucket}"
        for left in range(READ_AGAIN, -1, -1):
            body = self._opened(name, wish)
            if body is None:
                return None
            try:
                with translated(wish), closing(body):
                    return bytes(body.read())
            except StorageUnavailable:
                # boto3 asks again where an answer does not begin; one that breaks off is its reader's to ask for anew,
                # from the first byte, since the record may be another by now.
                if not left:
                    raise
        raise AssertionError("the last time returns or raises")

    def _opened(self, name: str, wish: str) -> Any:
        with translated(wish):
            try:
                return self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"]
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise

    def list(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        with translated(f"list the records of bucket {self._bucket}"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for found in page.get("Contents", ()):
                    yield str(found["Key"]).removeprefix(self._prefix)

    def delete(self, name: str) -> None:
        with translated(f"delete the record {name} from bucket {self._bucket}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
