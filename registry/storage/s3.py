"""Blobs in an S3 bucket. Links are presigned: bytes go between client and store, past the registry.

An upload link binds size, SHA-256 and "create if absent" into its signature. Stores differ in what they make of the
last two: several accept both headers and ignore them. `connect_s3` tries it once at start, so the registry knows
whether it must hash uploads itself (`enforces_checksum`). boto3's exceptions are translated here and nowhere else.
"""

import base64
import contextlib
import io
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError, PartialCredentialsError
from botocore.exceptions import ConnectionError as BotoConnectionError

from aot.errors import AotError, BlobNotFound, InvalidConfig, InvalidInput, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link

# One PUT takes no more (S3 API reference, PutObject).
PUT_LIMIT_BYTES = 5 << 30
_WRONG_CHECKSUM = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}


def connect_s3(
    *, bucket: str, prefix: str = "", endpoint: str | None = None, region: str | None = None
) -> "S3BlobStore":
    """Return the store, after finding out what this object store enforces.

    Credentials come from where boto3 finds them: environment, files, the host's role. Raises InvalidConfig when
    there are none or they are refused, StorageUnavailable when the store does not answer.
    """
    client = boto3.Session().client(  # not the default session, which remembers credentials
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        config=Config(
            signature_version="s3v4",
            connect_timeout=5,
            read_timeout=20,
            retries={"mode": "standard", "max_attempts": 3},
            # Buckets below an endpoint of one's own seldom have host names of their own.
            s3={"addressing_style": "path" if endpoint else "auto"},
            # Checksums are ours: CRCs that boto3 adds by itself are refused by older stores.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    store = S3BlobStore(client, bucket=bucket, prefix=prefix)
    store.probe()
    return store


class S3BlobStore:
    """One prefix of one bucket: `prefix/sha256/ab/cdef…`."""

    def __init__(self, client: Any, *, bucket: str, prefix: str = "") -> None:
        """Claims nothing of the store until `probe` has tried it."""
        self.enforces_checksum = False
        self.creates_if_absent = False
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def stat(self, digest: Digest) -> int | None:
        with translated(f"look for {digest} in bucket {self._bucket}"):
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=self._key(digest))["ContentLength"])
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise

    def upload_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        if blob.size_bytes > PUT_LIMIT_BYTES:
            raise InvalidInput(
                f"{blob.digest} has {blob.size_bytes} bytes, one upload takes {PUT_LIMIT_BYTES}",
                hint="split it, weights for example into several safetensors files",
            )
        bound = {"ChecksumSHA256": _base64_of(blob.digest), "IfNoneMatch": "*"}
        parameters = {
            "Bucket": self._bucket,
            "Key": self._key(blob.digest),
            "ContentLength": blob.size_bytes,
            **{name: value for name, value in bound.items() if name != "IfNoneMatch" or self.creates_if_absent},
        }
        headers = {"x-amz-checksum-sha256": bound["ChecksumSHA256"]}
        if self.creates_if_absent:
            headers["if-none-match"] = "*"
        url = self._presigned("put_object", parameters, expires_in)
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method="PUT", headers=headers)

    def download_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        parameters = {"Bucket": self._bucket, "Key": self._key(blob.digest)}
        url = self._presigned("get_object", parameters, expires_in)
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method="GET")

    def open(self, digest: Digest) -> BinaryIO:
        with translated(f"read {digest} from bucket {self._bucket}"):
            try:
                body = self._client.get_object(Bucket=self._bucket, Key=self._key(digest))["Body"]
            except ClientError as error:
                if _status(error) == 404:
                    raise BlobNotFound(f"the blob store does not hold {digest}", hint="upload it first") from error
                raise
        return cast(BinaryIO, io.BufferedReader(_Body(body, digest), buffer_size=1 << 20))

    def delete(self, digest: Digest) -> None:
        with translated(f"delete {digest} from bucket {self._bucket}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(digest))

    def records(self) -> "S3Records":
        return S3Records(self._client, bucket=self._bucket, prefix=f"{self._prefix}records/")

    @contextmanager
    def part_link(self, *, expires_in: timedelta) -> Iterator[str]:
        """A link to PUT the first part of an upload that is given up when the block ends."""
        place = {"Bucket": self._bucket, "Key": f"{self._prefix}probe/{secrets.token_hex(8)}"}
        with translated(f"begin an upload in parts in bucket {self._bucket}"):
            upload = self._client.create_multipart_upload(**place)["UploadId"]
        try:
            yield self._presigned("upload_part", {**place, "UploadId": upload, "PartNumber": 1}, expires_in)
        finally:
            with translated(f"give up an upload in parts in bucket {self._bucket}"):
                self._client.abort_multipart_upload(**place, UploadId=upload)

    def probe(self) -> None:
        """Find out whether this store refuses wrong checksums and overwriting, with one object that is removed."""
        key = f"{self._prefix}probe/{secrets.token_hex(8)}"
        wrong = _base64_of(Digest.of(b"another probe"))
        with translated(f"write to bucket {self._bucket}"):
            try:
                self.enforces_checksum = self._refuses(key, _WRONG_CHECKSUM, ChecksumSHA256=wrong)
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"probe")
                self.creates_if_absent = self._refuses(key, {"PreconditionFailed"}, IfNoneMatch="*")
            finally:
                with contextlib.suppress(ClientError, BotoCoreError):
                    self._client.delete_object(Bucket=self._bucket, Key=key)

    def _refuses(self, key: str, codes: set[str], **bound: str) -> bool:
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=b"probe", **bound)
        except ClientError as error:
            if error.response["Error"]["Code"] in codes:
                return True
            if error.response["Error"]["Code"] in ("NotImplemented", "InvalidArgument", "InvalidRequest"):
                return False  # the store does not know the header at all
            raise
        return False

    def _presigned(self, operation: str, parameters: dict[str, Any], expires_in: timedelta) -> str:
        with translated(f"sign a link for bucket {self._bucket}"):
            url = self._client.generate_presigned_url(
                operation, Params=parameters, ExpiresIn=max(1, int(expires_in.total_seconds()))
            )
        return str(url)

    def _key(self, digest: Digest) -> str:
        return f"{self._prefix}sha256/{digest.hex[:2]}/{digest.hex[2:]}"


class S3Records:
    """Records under one prefix of the bucket."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def put(self, name: str, content: bytes) -> None:
        with translated(f"write the record {name} to bucket {self._bucket}"):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)

    def find(self, name: str) -> bytes | None:
        with translated(f"read the record {name} from bucket {self._bucket}"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise
            return bytes(answer["Body"].read())

    def list(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        with translated(f"list the records of bucket {self._bucket}"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for found in page.get("Contents", ()):
                    yield str(found["Key"]).removeprefix(self._prefix)

    def delete(self, name: str) -> None:
        with translated(f"delete the record {name} from bucket {self._bucket}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)


@contextmanager
def translated(wish: str) -> Iterator[None]:
    """boto3's exceptions as ours: refused credentials stop the registry, everything passing is tried again."""
    try:
        yield
    except ClientError as error:
        raise _translated_answer(error, wish) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise InvalidConfig(
            f"could not {wish}: {error}", hint="give the registry credentials for its bucket"
        ) from error
    except (BotoConnectionError, HTTPClientError, OSError) as error:
        raise StorageUnavailable(f"could not {wish}: {error}", hint="check the endpoint in AOT_BLOB_URL") from error
    except BotoCoreError as error:
        raise InvalidConfig(f"could not {wish}: {error}", hint="check AOT_BLOB_URL") from error


def _translated_answer(error: ClientError, wish: str) -> AotError:
    code, status = error.response["Error"]["Code"], _status(error)
    message = f"could not {wish}: {code}"
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
        return StorageUnavailable(message, hint="the object store is busy or away")
    if status in (401, 403):
        # Without s3:ListBucket, S3 answers 403 for what is absent: a registry that went on would be wrong.
        return InvalidConfig(message, hint="the registry needs s3:GetObject, PutObject, DeleteObject and ListBucket")
    return InvalidConfig(message, hint="check bucket, endpoint and region in AOT_BLOB_URL")


class _Body(io.RawIOBase):
    """The stream of one answer, its errors translated."""

    def __init__(self, body: Any, digest: Digest) -> None:
        self._body = body
        self._digest = digest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with translated(f"read {self._digest}"):
            chunk = self._body.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _base64_of(digest: Digest) -> str:
    return base64.b64encode(bytes.fromhex(digest.hex)).decode()
