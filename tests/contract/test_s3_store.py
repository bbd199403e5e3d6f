"""What is the object store's alone: the probe, prefixes, and what its refusals mean."""

import itertools
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from aot.errors import InvalidConfig, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage import open_store
from registry.storage.place import S3Place
from registry.storage.s3 import S3BlobStore, connect_s3
from registry.storage.s3_answers import translated
from tests.contract.conftest import s3_client
from tests.contract.test_blob_store import follow, upload

BLOB = Blob(digest=Digest.of(b"x"), size_bytes=1)


def keys_of(endpoint: str, bucket: str) -> list[str]:
    return [item["Key"] for item in s3_client(endpoint).list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_the_probe_leaves_nothing(s3_store: S3BlobStore, s3_endpoint: str, s3_bucket: str) -> None:
    assert keys_of(s3_endpoint, s3_bucket) == []


def test_keys_lie_under_the_prefix(s3_store: S3BlobStore, s3_endpoint: str, s3_bucket: str) -> None:
    key = f"some/prefix/sha256/{BLOB.digest.hex[:2]}/{BLOB.digest.hex[2:]}"
    s3_client(s3_endpoint).put_object(Bucket=s3_bucket, Key=key, Body=b"x")
    assert s3_store.stat(BLOB.digest) == 1


def test_an_upload_link_binds_size_checksum_and_absence(s3_store: S3BlobStore) -> None:
    link = s3_store.upload_link(BLOB, expires_in=timedelta(minutes=5))
    query = parse_qs(urlsplit(link.url).query)
    assert query["X-Amz-SignedHeaders"] == ["content-length;host;if-none-match;x-amz-checksum-sha256"]
    assert query["X-Amz-Expires"] == ["300"]
    assert set(link.headers) == {"x-amz-checksum-sha256", "if-none-match"}


def test_a_server_takes_links_that_the_client_was_not_asked_for(nanio_store: S3BlobStore) -> None:
    blobs = [upload(nanio_store, bytes([number])) for number in range(10)]
    presign = MagicMock(wraps=nanio_store._presigned_get)
    nanio_store._download_links._presign = presign
    links = [nanio_store.download_link(blob, expires_in=timedelta(minutes=5)) for blob in blobs]
    assert presign.call_count < len(blobs) / 2
    assert [follow(link).body for link in links] == [bytes([number]) for number in range(10)]
    for link, other in itertools.pairwise(links):
        url = link.url.partition("&X-Amz-Signature=")[0] + "&X-Amz-Signature=" + other.url.rpartition("=")[2]
        assert follow(Link(digest=link.digest, size_bytes=1, url=url)).status == 403


def test_a_store_url_names_bucket_prefix_endpoint_and_region(s3_endpoint: str, s3_bucket: str, tmp_path: Path) -> None:
    url = f"s3://{s3_bucket}/a/b?endpoint={s3_endpoint}&region=us-east-1"
    store = open_store(url, data_dir=tmp_path, public_url="http://unused")
    assert isinstance(store, S3BlobStore)
    assert "/a/b/sha256/" in store.download_link(BLOB, expires_in=timedelta(minutes=5)).url


def test_a_bucket_that_is_not_there_stops_the_registry(s3_endpoint: str, s3_bucket: str) -> None:
    with pytest.raises(InvalidConfig, match="NoSuchBucket"):
        connect_s3(S3Place(bucket="no-such-bucket", endpoint=s3_endpoint, region="us-east-1"))


def test_an_endpoint_that_does_not_answer_is_unavailable(s3_bucket: str) -> None:
    with pytest.raises(StorageUnavailable, match="could not write"):
        connect_s3(S3Place(bucket="b", endpoint="http://127.0.0.1:1", region="us-east-1"))


def test_no_credentials_stop_the_registry(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(InvalidConfig, match="credentials"):
        connect_s3(S3Place(bucket="b", endpoint=s3_endpoint, region="us-east-1"))


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("AccessDenied", 403, InvalidConfig),
        ("InvalidAccessKeyId", 403, InvalidConfig),
        ("InternalError", 500, StorageUnavailable),
        ("SlowDown", 503, StorageUnavailable),
        ("RequestTimeout", 400, StorageUnavailable),
        ("NoSuchBucket", 404, InvalidConfig),
    ],
)
def test_what_a_refusal_means(code: str, status: int, error: type[Exception]) -> None:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(error), translated("read it"):
        raise ClientError(answer, "GetObject")


def test_a_lost_connection_is_unavailable() -> None:
    with pytest.raises(StorageUnavailable), translated("read it"):
        raise EndpointConnectionError(endpoint_url="http://store")


@pytest.mark.parametrize("url", ["gs://bucket", "s3://", "s3://bucket?endpoind=x", "s3://bucket#part", "/some/path"])
def test_another_store_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="AOT_BLOB_URL"):
        open_store(url, data_dir=tmp_path, public_url="http://unused")
