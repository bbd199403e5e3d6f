"""The object stores of the contract suite, a fresh bucket for every test: moto in server mode, nanio, and a strict one.

Each lacks something that another has, and the suite names it: moto accepts any signature and any link for ever;
nanio checks both, and knows neither checksums nor conditions. The strict one is nanio with both (`tests.strict`), as
Amazon's and MinIO are.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from registry.storage.place import S3Place
from registry.storage.s3 import S3BlobStore, connect_s3
from tests.nanio import nanio_server
from tests.stack import read_models_once
from tests.strict import strict_server

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def nanio_endpoint(tmp_path: Path) -> Iterator[str]:
    with nanio_server(tmp_path / "nanio", keys={"test": "test"}) as url:
        yield url


@pytest.fixture
def strict_endpoint(tmp_path: Path) -> Iterator[str]:
    with strict_server(tmp_path / "strict", keys={"test": "test"}) as url:
        yield url


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket, and credentials where boto3 looks for them."""
    return empty_bucket(s3_endpoint, monkeypatch)


@pytest.fixture
def s3_store(s3_endpoint: str, s3_bucket: str) -> S3BlobStore:
    return connect_s3(a_place(s3_endpoint, s3_bucket))


@pytest.fixture
def nanio_store(nanio_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3BlobStore:
    return connect_s3(a_place(nanio_endpoint, empty_bucket(nanio_endpoint, monkeypatch)))


@pytest.fixture
def strict_store(strict_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3BlobStore:
    return connect_s3(a_place(strict_endpoint, empty_bucket(strict_endpoint, monkeypatch)))


def a_place(endpoint: str, bucket: str, **deviations: Any) -> S3Place:
    named: dict[str, Any] = {"prefix": "some/prefix", "endpoint": endpoint, "region": "us-east-1", **deviations}
    return S3Place(bucket=bucket, **named)


def empty_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    read_models_once()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    bucket = f"blobs-{uuid.uuid4().hex}"
    s3_client(endpoint).create_bucket(Bucket=bucket)
    return bucket


def s3_client(endpoint: str) -> Any:
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **KEYS)
