"""Transfers against a served directory store: in parallel, over a line that cuts, by links that expire."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from aot.cache import LocalCache
from aot.client import HttpTransport, RegistryClient, RetryPolicy
from aot.errors import BlobNotFound, DigestMismatch, Forbidden, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.storage.directory import DirectoryBlobStore
from registry.storage.signing import LinkSigner
from tests.serving import blob_app, listening, serving

HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryBlobStore]:
    with listening() as (listener, url):
        store = DirectoryBlobStore(tmp_path / "blobs", LinkSigner(b"s" * 32, url))
        with serving(blob_app(store), listener):
            yield store


@pytest.fixture
def client() -> RegistryClient:
    return RegistryClient(
        HttpTransport(), "http://unused", None, retry=RetryPolicy(attempts=3, sleep=lambda _: None), timeout_seconds=10
    )


def a_file(directory: Path, content: bytes) -> tuple[Blob, Path]:
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    path = directory / blob.digest.short
    path.write_bytes(content)
    return blob, path


def test_forty_blobs_go_up_and_come_down(store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path) -> None:
    files = dict(a_file(tmp_path, os.urandom(1000 * number * number)) for number in range(40))
    uploads = [store.upload_link(blob, expires_in=HOUR) for blob in files]
    client.upload_blobs(uploads, {blob.digest: path for blob, path in files.items()})
    cache = LocalCache(tmp_path / "cache")
    links = [store.download_link(blob, expires_in=HOUR) for blob in files]
    paths = client.fetch_blobs(files, links, cache)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in files.values()]


def test_a_file_with_other_bytes_is_refused_by_the_store(
    store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path
) -> None:
    blob, path = a_file(tmp_path, b"as announced")
    path.write_bytes(b"as  changed ")
    with pytest.raises(DigestMismatch):
        client.put_blob(store.upload_link(blob, expires_in=HOUR), path)
    assert store.stat(blob.digest) is None


def test_an_expired_link_is_forbidden_even_for_a_large_file(
    store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path
) -> None:
    blob, path = a_file(tmp_path, bytes(20_000_000))
    with pytest.raises(Forbidden, match="expired"):
        client.put_blob(store.upload_link(blob, expires_in=timedelta(seconds=-5)), path)


def test_a_blob_that_was_deleted_is_named(store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path) -> None:
    blob, _ = a_file(tmp_path, b"gone")
    with pytest.raises(BlobNotFound):
        client.fetch_blobs([blob], [store.download_link(blob, expires_in=HOUR)], LocalCache(tmp_path / "cache"))


def test_the_first_failure_stops_the_others(store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path) -> None:
    good = [a_file(tmp_path, os.urandom(300_000)) for _ in range(20)]
    for blob, path in good:
        with store.incoming(blob) as writer:
            writer.write(path.read_bytes())
    bad, _ = a_file(tmp_path, os.urandom(400_000))  # never uploaded, and the first to be asked for
    blobs = [bad, *(blob for blob, _ in good)]
    cache = LocalCache(tmp_path / "cache")
    with pytest.raises(BlobNotFound):
        client.fetch_blobs(blobs, [store.download_link(blob, expires_in=HOUR) for blob in blobs], cache, workers=2)
    time.sleep(0.2)
    assert len(cache.missing(blobs)) > 10
    assert not list((cache.root / "incoming").iterdir())


class CuttingProxy:
    """Passes connections on, and ends each after so many bytes of the answer."""

    def __init__(self, target: str, *, after: int) -> None:
        self._target = target
        self._after = after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        host, _, port = self._target.removeprefix("http://").partition(":")
        with client, socket.create_connection((host, int(port))) as server:
            server.sendall(client.recv(65536))
            left = self._after
            while left and (chunk := server.recv(min(65536, left))):
                client.sendall(chunk)
                left -= len(chunk)

    def close(self) -> None:
        self._listener.close()


def test_a_line_that_cuts_every_100_kilobytes_delivers_all(
    store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path
) -> None:
    content = os.urandom(1_000_000)
    blob, path = a_file(tmp_path, content)
    client.put_blob(store.upload_link(blob, expires_in=HOUR), path)
    link = store.download_link(blob, expires_in=HOUR)
    proxy = CuttingProxy(store.signer.public_url, after=100_000)
    through = type(link)(
        digest=link.digest, size_bytes=link.size_bytes, url=link.url.replace(store.signer.public_url, proxy.url)
    )
    try:
        (got,) = client.fetch_blobs([blob], [through], LocalCache(tmp_path / "cache"))
        assert got.read_bytes() == content
        assert proxy.connections >= 10
    finally:
        proxy.close()


def test_a_blob_damaged_in_the_store_is_not_taken(
    store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path
) -> None:
    blob, path = a_file(tmp_path, os.urandom(100_000))
    client.put_blob(store.upload_link(blob, expires_in=HOUR), path)
    stored = store.root / blob.digest.hex[:2] / blob.digest.hex[2:]
    stored.chmod(0o644)
    cache = LocalCache(tmp_path / "cache")
    links = [store.download_link(blob, expires_in=HOUR)]
    stored.write_bytes(bytes(100_000))
    with pytest.raises(DigestMismatch):
        client.fetch_blobs([blob], links, cache)
    stored.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SizeMismatch):
        client.fetch_blobs([blob], links, cache)
    assert [item for item in cache.root.rglob("*") if item.is_file()] == []


def test_an_object_store_takes_a_blob_twice(
    client: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    from registry.storage.place import S3Place
    from registry.storage.s3 import connect_s3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint, bucket = f"http://{host}:{port}", f"blobs-{uuid.uuid4().hex}"
        boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)
        s3 = connect_s3(S3Place(bucket=bucket, endpoint=endpoint, region="us-east-1"))
        blob, path = a_file(tmp_path, os.urandom(300_000))
        client.put_blob(s3.upload_link(blob, expires_in=HOUR), path)
        client.put_blob(s3.upload_link(blob, expires_in=HOUR), path)  # answered 412, which is as good
        links = [s3.download_link(blob, expires_in=HOUR)]
        (got,) = client.fetch_blobs([blob], links, LocalCache(tmp_path / "cache"))
        assert got.read_bytes() == path.read_bytes()
        with pytest.raises(BlobNotFound):
            absent = Blob(digest=Digest.of(b"absent"), size_bytes=6)
            client.fetch_blobs([absent], [s3.download_link(absent, expires_in=HOUR)], LocalCache(tmp_path / "c"))
    finally:
        server.stop()


def test_the_largest_blob_is_asked_for_first_small_ones_between_and_paths_come_in_the_callers_order(
    store: DirectoryBlobStore, client: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(a_file(tmp_path, os.urandom(size)) for size in (10, 30_000, 20, 20_000, 10_000))
    for blob, path in files.items():
        with store.incoming(blob) as writer:
            writer.write(path.read_bytes())
    links = [store.download_link(blob, expires_in=HOUR) for blob in files]
    asked: list[int] = []
    send = client.transport.send

    def sent(method: str, url: str, **options: object) -> object:
        asked.append(next(link.size_bytes for link in links if link.url == url))
        return send(method, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(client.transport, "send", sent)
    paths = client.fetch_blobs(files, links, LocalCache(tmp_path / "cache"), workers=1)
    assert asked == [30_000, 10_000, 20, 20_000, 10]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in files.values()]
