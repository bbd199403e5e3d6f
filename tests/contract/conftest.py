"""The object store of the contract suite: moto in server mode, a fresh bucket for every test."""

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from registry.storage.s3 import S3BlobStore, connect_s3

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket, and credentials where boto3 looks for them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    bucket = f"blobs-{uuid.uuid4().hex}"
    s3_client(s3_endpoint).create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def s3_store(s3_endpoint: str, s3_bucket: str) -> S3BlobStore:
    return connect_s3(bucket=s3_bucket, prefix="some/prefix", endpoint=s3_endpoint, region="us-east-1")


def s3_client(endpoint: str) -> Any:
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **KEYS)
