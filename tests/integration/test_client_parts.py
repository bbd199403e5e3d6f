"""The client and large blobs: parts in parallel, gone on with after an interruption, over links that expire, and in
little memory. The store is an S3 server that enforces signatures and expiry."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from aot.cache import LocalCache
from aot.client import HttpTransport, RegistryClient, RetryPolicy
from aot.client.transport import Body, Reply
from aot.errors import BlobNotFound, Forbidden, RegistryUnreachable, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.services.blobs import observe
from registry.storage.parts import Incoming
from registry.storage.place import MIB, S3Place
from registry.storage.s3 import S3BlobStore, connect_s3
from tests.nanio import nanio_server

ROOT = Path(__file__).parents[2]
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
PART = 5 * MIB
MINE = Namespace("default")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3BlobStore]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with nanio_server(tmp_path / "nanio", keys={"test": "test"}) as url:
        bucket = f"blobs-{uuid.uuid4().hex}"
        boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
        yield connect_s3(
            S3Place(bucket=bucket, endpoint=url, region="us-east-1", largest_put_bytes=PART, part_bytes=PART)
        )


def mine(store: S3BlobStore) -> Incoming:
    return store.incoming_of(MINE)


class Counting(HttpTransport):
    """Counts what is put, and cuts the line from the n-th request on."""

    def __init__(self, *, cut_from: int | None = None) -> None:
        super().__init__()
        self.put = self.together = self.most_together = 0
        self._cut_from = cut_from
        self._counting = threading.Lock()

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        with self._counting:
            self.put += method == "PUT"
            self.together += 1
            self.most_together = max(self.most_together, self.together)
            cut = self._cut_from is not None and self.put > self._cut_from
        try:
            if cut:
                raise RegistryUnreachable("cut", details={"sent": True})
            return super().send(method, url, headers=headers, body=body, timeout_seconds=timeout_seconds)
        finally:
            with self._counting:
                self.together -= 1


def client_of(transport: HttpTransport) -> RegistryClient:
    retry = RetryPolicy(attempts=2, sleep=lambda _: None)
    return RegistryClient(transport, "http://unused", None, retry=retry, timeout_seconds=20)


def a_file(directory: Path, size: int) -> tuple[Blob, Path]:
    content = os.urandom(size)
    blob = Blob(digest=Digest.of(content), size_bytes=size)
    path = directory / blob.digest.short
    path.write_bytes(content)
    return blob, path


def test_a_large_blob_goes_up_in_parts_at_once_and_comes_down_whole(store: S3BlobStore, tmp_path: Path) -> None:
    blob, path = a_file(tmp_path, 22 * MIB + 1)
    small, small_path = a_file(tmp_path, 1000)
    transport = Counting()
    client = client_of(transport)
    links = [mine(store).link(one, expires_in=HOUR) for one in (blob, small)]
    client.upload_blobs(links, {blob.digest: path, small.digest: small_path})
    assert transport.put == 6 and transport.most_together > 1
    assert observe([blob, small], store, namespace=MINE).sizes == {blob.digest: blob.size_bytes, small.digest: 1000}
    stream, version = mine(store).open(blob.digest)
    stream.close()
    assert mine(store).adopt(blob, version=version, seconds=20)
    cache = LocalCache(tmp_path / "cache")
    got = client.fetch_blobs([blob], [store.download_link(blob, expires_in=HOUR)], cache)
    assert got[0].read_bytes() == path.read_bytes()


def test_what_an_interrupted_upload_has_sent_is_not_sent_again(store: S3BlobStore, tmp_path: Path) -> None:
    blob, path = a_file(tmp_path, 22 * MIB)
    with pytest.raises(RegistryUnreachable):
        client_of(Counting(cut_from=3)).upload_blobs(
            [mine(store).link(blob, expires_in=HOUR)], {blob.digest: path}, workers=1
        )
    transport = Counting()
    client_of(transport).upload_blobs([mine(store).link(blob, expires_in=HOUR)], {blob.digest: path})
    assert transport.put == 2
    assert observe([blob], store, namespace=MINE).sizes == {blob.digest: blob.size_bytes}


def test_put_blob_sends_every_part(store: S3BlobStore, tmp_path: Path) -> None:
    blob, path = a_file(tmp_path, 11 * MIB)
    client_of(HttpTransport()).put_blob(mine(store).link(blob, expires_in=HOUR), path)
    assert observe([blob], store, namespace=MINE).sizes == {blob.digest: blob.size_bytes}


class Renewing(RegistryClient):
    """A client whose registry is the store itself."""

    store: S3BlobStore
    asked = 0

    def open_uploads(self, namespace: Namespace, blobs: Any) -> tuple[Link, ...]:
        self.asked += 1
        sizes = observe(blobs, self.store, namespace=MINE).sizes
        return tuple(
            mine(self.store).link(blob, expires_in=HOUR) for blob in blobs if sizes[blob.digest] != blob.size_bytes
        )


def test_links_that_expire_on_the_way_are_asked_for_again(store: S3BlobStore, tmp_path: Path) -> None:
    blob, path = a_file(tmp_path, 11 * MIB)
    small, small_path = a_file(tmp_path, 1000)
    files = {blob.digest: path, small.digest: small_path}
    expired = [mine(store).link(one, expires_in=SECOND) for one in (blob, small)]
    time.sleep(2.1)
    client = Renewing(HttpTransport(), "http://unused", None, retry=RetryPolicy(attempts=2, sleep=lambda _: None))
    client.store = store
    with pytest.raises(Forbidden, match="expired") as raised:
        client.upload_blobs(expired, files, workers=1)
    assert "clocks" in raised.value.hint
    client.upload_blobs(expired, files, workers=1, namespace=Namespace("default"))
    assert client.asked == 4  # once for each request that was refused
    assert observe([blob, small], store, namespace=MINE).sizes == {blob.digest: blob.size_bytes, small.digest: 1000}


def test_a_part_whose_answer_got_lost_may_be_put_again_after_the_upload_was_completed(
    store: S3BlobStore, tmp_path: Path
) -> None:
    blob, path = a_file(tmp_path, 11 * MIB)
    links = [mine(store).link(blob, expires_in=HOUR)]
    client_of(Counting()).upload_blobs(links, {blob.digest: path})
    assert mine(store).complete(blob) == blob.size_bytes
    client = Renewing(HttpTransport(), "http://unused", None, retry=RetryPolicy(attempts=2, sleep=lambda _: None))
    client.store = store
    with pytest.raises(BlobNotFound):
        client.upload_blobs(links, {blob.digest: path}, workers=1)
    client.upload_blobs(links, {blob.digest: path}, workers=1, namespace=MINE)
    assert client.asked == 3, "it has arrived: each part was asked about and none sent"


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_not_sent(store: S3BlobStore, tmp_path: Path, change: int) -> None:
    blob, path = a_file(tmp_path, 11 * MIB)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"x")
    transport = Counting()
    with pytest.raises(SizeMismatch, match=f"has {11 * MIB + change} bytes"):
        client_of(transport).upload_blobs([mine(store).link(blob, expires_in=HOUR)], {blob.digest: path})
    assert transport.put == 0


UPLOAD = """
import sys
from pathlib import Path
from aot.client import HttpTransport, RegistryClient
from aot.schema.codec import decode
from aot.schema.wire.blobs import LinksReply
links = decode(Path(sys.argv[1]).read_bytes(), LinksReply).links
client = RegistryClient(HttpTransport(), "http://unused", None)
client.upload_blobs(links, {links[0].digest: Path(sys.argv[2])})
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
"""


def test_uploading_takes_little_memory_however_large_the_file(store: S3BlobStore, tmp_path: Path) -> None:
    from aot.schema.codec import encode
    from aot.schema.wire.blobs import LinksReply

    blob, path = a_file(tmp_path, 120 * MIB)
    reply = tmp_path / "links"
    reply.write_bytes(encode(LinksReply(links=(mine(store).link(blob, expires_in=HOUR),))))
    done = subprocess.run(
        [sys.executable, "-c", UPLOAD, str(reply), str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024
    assert observe([blob], store, namespace=MINE).sizes == {blob.digest: blob.size_bytes}
