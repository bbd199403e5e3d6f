"""Blobs in an S3 bucket. Links are presigned: bytes go between client and store, past the registry.

An upload link binds size, SHA-256 and "create if absent" into its signature. Stores differ in what they make of the
last two: several accept both headers and ignore them. `connect_s3` tries it once at start, so the registry knows
whether it must hash uploads itself (`enforces_checksum`). Then, and above `largest_put`, where a blob is put in parts,
it comes to a place of its namespace first (`s3_incoming`).
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
from botocore.exceptions import BotoCoreError, ClientError

from aot.errors import BlobNotFound
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.parts import Arrival, PartUpload
from registry.storage.place import S3Place
from registry.storage.s3_answers import ResumedBody, code_of, head, status_of, translated
from registry.storage.s3_copies import S3Copies
from registry.storage.s3_incoming import S3Incoming, arrivals, incoming_prefix, key_of, parsed
from registry.storage.s3_links import S3DownloadLinks, life_of
from registry.storage.s3_parts import S3PartUploads
from registry.storage.s3_records import S3Records
from registry.storage.s3_versions import S3Versions

_WRONG_CHECKSUM = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_UNKNOWN_HEADER = {"NotImplemented", "InvalidArgument", "InvalidRequest"}


def connect_s3(place: S3Place) -> "S3BlobStore":
    """Return the store, after finding out what this object store enforces.

    Credentials come from where boto3 finds them: environment, files, the host's role. Raises InvalidConfig when
    there are none or they are refused, StorageUnavailable when the store does not answer.
    """
    session = boto3.Session()  # not the default session, which remembers credentials
    store = S3BlobStore(_client_of(session, place, place.endpoint), place, session=session)
    store.probe()
    return store


def _client_of(session: boto3.Session, place: S3Place, endpoint: str | None) -> Any:
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=place.region,
        config=Config(
            signature_version="s3v4",
            connect_timeout=5,
            read_timeout=20,
            retries={"mode": "standard", "max_attempts": 3},
            max_pool_connections=32,
            s3={"addressing_style": str(place.addressing_style)},
            # Checksums are ours: CRCs that boto3 adds by itself are refused by older stores.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3BlobStore:
    """One prefix of one bucket: `prefix/sha256/ab/cdef…`."""

    def __init__(self, client: Any, place: S3Place, *, session: boto3.Session | None = None) -> None:
        """Claims nothing of the store until `probe` has tried it. `session`: whose credentials `client` signs with."""
        self.enforces_checksum = False
        self.creates_if_absent = False
        self.largest_put_bytes = place.largest_put_bytes
        self._client = client
        # Signs links: the host is part of a signature, and clients may reach the store under another name.
        session = session or boto3.Session()
        self._signer = _client_of(session, place, place.public_endpoint) if place.public_endpoint else client
        self._credentials = session.get_credentials()
        self._download_links = S3DownloadLinks(self._presigned_get, credentials=self._credentials)
        self._bucket = place.bucket
        self._prefix = place.key_prefix
        self._encryption = _encryption_of(place)
        self._parts = S3PartUploads(client, place, presign=self._presigned, encryption=self._encryption)
        self._copies = S3Copies(client, place.bucket, encryption=self._encryption)
        self._versions = S3Versions(client, place.bucket)

    def stat(self, digest: Digest) -> int | None:
        found = head(self._client, self._bucket, self._key(digest), what=digest)
        return None if found is None else int(found["ContentLength"])

    def upload_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        return self._put_link(blob, self._key(blob.digest), expires_in)

    def _put_link(self, blob: Blob, key: str, expires_in: timedelta) -> Link:
        checksum = _base64_of(blob.digest)
        parameters = {
            "Bucket": self._bucket,
            "Key": key,
            "ContentLength": blob.size_bytes,
            "ChecksumSHA256": checksum,
            **self._encryption,
        }
        headers = {"x-amz-checksum-sha256": checksum, **_headers_of(self._encryption)}
        if self.creates_if_absent:
            parameters["IfNoneMatch"] = headers["if-none-match"] = "*"
        url = self._presigned("put_object", parameters, expires_in)
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method="PUT", headers=headers)

    def download_link(self, blob: Blob, *, expires_in: timedelta) -> Link:
        url = self._download_links.url(blob.digest, expires_in=expires_in)
        return Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method="GET")

    def open(self, digest: Digest) -> BinaryIO:
        def begin(position: int) -> tuple[Any, int]:
            ranged = {"Range": f"bytes={position}-"} if position else {}
            with translated(f"read {digest} from bucket {self._bucket}"):
                try:
                    answer = self._client.get_object(Bucket=self._bucket, Key=self._key(digest), **ranged)
                except ClientError as error:
                    if status_of(error) == 404:
                        raise BlobNotFound(f"the blob store does not hold {digest}", hint="upload it first") from error
                    raise
            return answer["Body"], int(answer["ContentLength"])

        return cast(BinaryIO, io.BufferedReader(ResumedBody(begin, digest), buffer_size=1 << 20))

    def version(self, digest: Digest) -> str | None:
        return self._versions.find(self._key(digest))

    def delete(self, digest: Digest, *, version: str | None = None) -> bool:
        return self._versions.delete(self._key(digest), version)

    def records(self) -> S3Records:
        return S3Records(
            self._client, bucket=self._bucket, prefix=f"{self._prefix}records/", encryption=self._encryption
        )

    # Bytes that were not compared (`registry.storage.parts`)

    @property
    def binds_copies(self) -> bool:
        return self._copies.bound

    def incoming_of(self, namespace: Namespace) -> S3Incoming:
        return S3Incoming(
            namespace,
            client=self._client,
            bucket=self._bucket,
            prefix=self._prefix,
            largest_put_bytes=self.largest_put_bytes,
            parts=self._parts,
            copies=self._copies,
            versions=self._versions,
            put=self._put_link,
        )

    def arrivals(self) -> Iterator[Arrival]:
        return arrivals(self._client, self._bucket, self._prefix)

    def part_uploads(self) -> Iterator[PartUpload]:
        for prefix in (incoming_prefix(self._prefix), f"{self._prefix}sha256/"):
            for upload in self._parts.begun(prefix):
                if (whose := parsed(upload.key, self._prefix)) is not None:  # else somebody else's
                    digest, namespace = whose
                    yield PartUpload(
                        digest=digest, id=upload.id, begun_at=upload.begun_at, key=upload.key, namespace=namespace
                    )

    def give_up(self, upload: PartUpload) -> None:
        self._parts.give_up(upload.key, upload.id)

    @contextmanager
    def part_link(self, *, expires_in: timedelta) -> Iterator[str]:
        """A link to PUT the first part of an upload that is given up when the block ends."""
        upload = self._parts.begin(f"{self._prefix}probe/{secrets.token_hex(8)}")
        try:
            self._parts.stored(upload)
            place = {"Bucket": self._bucket, "Key": upload.key, "UploadId": upload.id, "PartNumber": 1}
            yield self._presigned("upload_part", place, expires_in)
        finally:
            self._parts.give_up(upload.key, upload.id)

    # Finding out

    def probe(self) -> None:
        """Find out whether this store refuses wrong checksums, overwriting, and copies of another version.

        With one object and perhaps its copy, which are removed.
        """
        key = f"{self._prefix}probe/{secrets.token_hex(8)}"
        wrong = _base64_of(Digest.of(b"another probe"))
        with translated(f"write to bucket {self._bucket}"):
            try:
                self.enforces_checksum = self._refuses(key, _WRONG_CHECKSUM, ChecksumSHA256=wrong)
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"probe", **self._encryption)
                self.creates_if_absent = self._refuses(key, {"PreconditionFailed"}, IfNoneMatch="*")
                self._copies.probe(key, to=f"{key}-copy")
            finally:
                for one in (key, f"{key}-copy"):
                    with contextlib.suppress(ClientError, BotoCoreError):
                        self._client.delete_object(Bucket=self._bucket, Key=one)

    def _refuses(self, key: str, codes: set[str], **bound: str) -> bool:
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=b"probe", **bound, **self._encryption)
        except ClientError as error:
            if code_of(error) in codes:
                return True
            if code_of(error) in _UNKNOWN_HEADER:
                return False  # the store does not know the header at all
            raise
        return False

    def _presigned_get(self, digest: Digest, expires_in: timedelta) -> str:
        return self._presigned("get_object", {"Bucket": self._bucket, "Key": self._key(digest)}, expires_in)

    def _presigned(self, operation: str, parameters: dict[str, Any], expires_in: timedelta) -> str:
        with translated(f"sign a link for bucket {self._bucket}"):
            lives = life_of(self._credentials, expires_in)
            url = self._signer.generate_presigned_url(
                operation, Params=parameters, ExpiresIn=max(1, int(lives.total_seconds()))
            )
        return str(url)

    def _key(self, digest: Digest) -> str:
        return key_of(self._prefix, digest)


def _encryption_of(place: S3Place) -> dict[str, str]:
    """How everything is encrypted that is written, as parameters of boto3."""
    named = {"ServerSideEncryption": str(place.sse) if place.sse else None, "SSEKMSKeyId": place.kms_key}
    return {name: value for name, value in named.items() if value}


def _headers_of(encryption: dict[str, str]) -> dict[str, str]:
    """The same as headers, which a link binds and its client must send."""
    names = {
        "ServerSideEncryption": "x-amz-server-side-encryption",
        "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
    }
    return {names[name]: value for name, value in encryption.items()}


def _base64_of(digest: Digest) -> str:
    return base64.b64encode(bytes.fromhex(digest.hex)).decode()
