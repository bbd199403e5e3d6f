"""Uploads that go wrong: cut, twice at once, slow, stalled, too large, of other bytes; and clocks an hour apart.

Each ends in the right blob or in none, and in an error that says what to do. The stores: a directory served by the
registry, and an S3 server that enforces signatures and expiry.
"""

import http.client
import os
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.auth
import pytest

from aot.cache import LocalCache
from aot.client import HttpTransport, RegistryClient
from aot.client.retry import ONCE
from aot.errors import DigestMismatch, Forbidden, InvalidConfig, SizeMismatch, StorageUnavailable
from aot.schema.codec import decode
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.errors import ErrorBody
from registry.storage.directory import DirectoryBlobStore
from registry.storage.place import S3Place
from registry.storage.protocol import BlobStore
from registry.storage.s3 import S3BlobStore, connect_s3
from registry.storage.signing import LinkSigner
from tests.nanio import nanio_server
from tests.serving import blob_app, listening, serving

HOUR = timedelta(hours=1)
CONTENT = os.urandom(300_000)
BLOB = Blob(digest=Digest.of(CONTENT), size_bytes=len(CONTENT))
WRONG = bytes(len(CONTENT))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DirectoryBlobStore]:
    with listening() as (listener, url):
        store = DirectoryBlobStore(tmp_path / "blobs", LinkSigner(b"s" * 32, url))
        with serving(blob_app(store), listener):
            yield store


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Place]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with nanio_server(tmp_path / "nanio", keys={"test": "test"}) as url:
        bucket = f"blobs-{uuid.uuid4().hex}"
        boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
        yield S3Place(bucket=bucket, endpoint=url, region="us-east-1")


@pytest.fixture
def s3(place: S3Place) -> S3BlobStore:
    return connect_s3(place)


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest) -> BlobStore:
    return request.getfixturevalue(request.param)


@pytest.fixture
def client() -> RegistryClient:
    return RegistryClient(HttpTransport(), "http://unused", None, retry=ONCE, timeout_seconds=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


class Sending:
    """An upload by hand, a piece at a time."""

    def __init__(self, store: BlobStore, *, announce: int | None = len(CONTENT)) -> None:
        link = store.upload_link(BLOB, expires_in=HOUR)
        parts = urlsplit(link.url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        self.connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        for name, value in link.headers.items():
            self.connection.putheader(name, value)
        self._chunked = announce is None
        if announce is None:
            self.connection.putheader("transfer-encoding", "chunked")
        else:
            self.connection.putheader("content-length", str(announce))
        self.connection.endheaders()

    def send(self, content: bytes) -> None:
        self.connection.send(b"%x\r\n%s\r\n" % (len(content), content) if self._chunked else content)

    def answer(self) -> tuple[int, bytes]:
        if self._chunked:
            self.connection.send(b"0\r\n\r\n")
        reply = self.connection.getresponse()
        return reply.status, reply.read()


def content_of(store: BlobStore) -> bytes | None:
    if store.stat(BLOB.digest) is None:
        return None
    with store.open(BLOB.digest) as stream:
        return stream.read()


def test_an_upload_that_is_cut_leaves_no_blob_and_can_be_made_again(
    store: BlobStore, client: RegistryClient, path: Path
) -> None:
    sending = Sending(store)
    sending.send(CONTENT[:100_000])
    time.sleep(0.2)
    sending.connection.close()
    time.sleep(0.3)
    assert content_of(store) is None
    client.put_blob(store.upload_link(BLOB, expires_in=HOUR), path)
    assert content_of(store) == CONTENT


def test_two_uploads_at_once_of_which_one_is_wrong_end_in_the_right_blob(directory: DirectoryBlobStore) -> None:
    right, wrong = Sending(directory), Sending(directory)
    for start in range(0, len(CONTENT), 50_000):
        right.send(CONTENT[start : start + 50_000])
        wrong.send(WRONG[start : start + 50_000])
    assert wrong.answer()[0] == 422
    assert right.answer()[0] == 201
    assert content_of(directory) == CONTENT


def test_a_slow_upload_is_taken(store: BlobStore) -> None:
    sending = Sending(store)
    for start in range(0, len(CONTENT), 30_000):
        sending.send(CONTENT[start : start + 30_000])
        time.sleep(0.05)
    assert sending.answer()[0] in (200, 201)
    assert content_of(store) == CONTENT


def test_an_upload_that_stands_still_is_ended(directory: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.storage.links.IDLE_SECONDS", 0.5)
    sending = Sending(directory)
    sending.send(CONTENT[:100_000])
    begun = time.monotonic()
    status, body = sending.answer()
    assert status == 503 and time.monotonic() - begun < 5
    error = decode(body, ErrorBody).to_error()
    assert isinstance(error, StorageUnavailable) and "stood still for 0.5 s" in error.message
    assert [item for item in directory.root.rglob("*") if item.is_file()] == []


@pytest.mark.parametrize("announce", [len(CONTENT) + 1, None], ids=["announced", "not announced"])
def test_an_upload_that_is_too_large_is_refused(store: BlobStore, announce: int | None) -> None:
    sending = Sending(store, announce=announce)
    try:
        sending.send(CONTENT + b"x")
        status, body = sending.answer()
    except (BrokenPipeError, ConnectionResetError):
        status, body = 403, b""  # it did not want to read on
    assert status in (403, 422)
    if isinstance(store, DirectoryBlobStore):
        assert isinstance(decode(body, ErrorBody).to_error(), SizeMismatch)
    assert content_of(store) is None


def test_a_file_that_grew_is_not_sent(store: BlobStore, client: RegistryClient, path: Path) -> None:
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(SizeMismatch, match="has 300001 bytes"):
        client.put_blob(store.upload_link(BLOB, expires_in=HOUR), path)
    assert content_of(store) is None


def test_other_bytes_than_announced_are_refused_by_name(
    directory: DirectoryBlobStore, client: RegistryClient, path: Path
) -> None:
    path.write_bytes(WRONG)
    with pytest.raises(DigestMismatch, match=BLOB.digest):
        client.put_blob(directory.upload_link(BLOB, expires_in=HOUR), path)
    assert content_of(directory) is None


def test_other_bytes_that_a_store_let_in_reach_no_cache(
    s3: S3BlobStore, client: RegistryClient, path: Path, tmp_path: Path
) -> None:
    path.write_bytes(WRONG)
    client.put_blob(s3.upload_link(BLOB, expires_in=HOUR), path)
    cache = LocalCache(tmp_path / "cache")
    with pytest.raises(DigestMismatch):
        client.fetch_blobs([BLOB], [s3.download_link(BLOB, expires_in=HOUR)], cache)
    assert cache.path_of(BLOB.digest) is None


# Clocks


def turn_signing_clock(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """From here on the registry signs as if it were so much later."""
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: datetime.now(UTC) + ahead)


def test_a_clients_clock_does_not_matter(
    store: BlobStore, client: RegistryClient, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, present = store.upload_link(BLOB, expires_in=HOUR), time.time
    got = store.download_link(BLOB, expires_in=HOUR)
    for ahead in (-7200, 7200):
        # What serves runs in this process too; its links were written before, and are checked by `datetime`.
        monkeypatch.setattr(time, "time", lambda ahead=ahead: present() + ahead)
        client.put_blob(put, path)
        cache = LocalCache(tmp_path / f"cache{ahead}")
        assert client.fetch_blobs([BLOB], [got], cache)[0].read_bytes() == CONTENT


@pytest.mark.parametrize(("ahead", "said"), [(-HOUR, "expired"), (HOUR, "future")], ids=["behind", "ahead"])
def test_links_of_a_registry_an_hour_off_the_store_are_refused_and_the_clocks_named(
    s3: S3BlobStore, client: RegistryClient, path: Path, monkeypatch: pytest.MonkeyPatch, ahead: timedelta, said: str
) -> None:
    turn_signing_clock(monkeypatch, ahead)
    lives = timedelta(minutes=59)
    link = s3.upload_link(BLOB, expires_in=lives)
    with pytest.raises(Forbidden, match=said) as raised:
        client.put_blob(link, path)
    assert "clocks of the registry and of the object store differ" in raised.value.hint
    with pytest.raises(Forbidden, match=said):
        client.get_blob(s3.download_link(BLOB, expires_in=lives), Discarding())
    monkeypatch.undo()
    assert content_of_undone(s3) is None


def content_of_undone(s3: S3BlobStore) -> bytes | None:
    os.environ.update({"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    return content_of(s3)


class Discarding:
    def write(self, chunk: bytes) -> object:
        return None


@pytest.mark.parametrize("ahead", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_a_registry_an_hour_off_its_store_says_so_at_its_start(
    place: S3Place, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    turn_signing_clock(monkeypatch, ahead)
    with pytest.raises(InvalidConfig, match="RequestTimeTooSkewed") as raised:
        connect_s3(place)
    assert "clocks" in raised.value.hint and "NTP" in raised.value.hint


def test_two_registries_an_hour_apart_refuse_each_others_links_and_name_the_clocks(tmp_path: Path) -> None:
    def at(ahead: timedelta) -> Any:
        return lambda: datetime.now(UTC) + ahead

    late = LinkSigner(b"s" * 32, "http://host", clock=at(timedelta(0)))
    early = LinkSigner(b"s" * 32, "http://host", clock=at(-HOUR - timedelta(minutes=1)))
    query = dict(pair.split("=") for pair in urlsplit(early.link(BLOB, "GET", expires_in=HOUR).url).query.split("&"))
    given = {"expires": int(query["expires"]), "signature": query["sig"]}
    early.check("GET", BLOB, **given)
    with pytest.raises(Forbidden, match="expired at") as raised:
        late.check("GET", BLOB, **given)
    assert "compare the clocks of both hosts" in raised.value.hint


def test_a_hundred_cut_uploads_leave_the_server_as_it_was(directory: DirectoryBlobStore) -> None:
    before = threading.active_count()
    for _ in range(100):
        sending = Sending(directory)
        sending.send(CONTENT[:1000])
        sending.connection.close()
    deadline, clean = time.monotonic() + 20, 0
    # A connection that was sent before may be taken up after the others have ended, so one look is not enough.
    while clean < 20:
        left = [str(item) for item in directory.root.rglob("*") if item.is_file()] + _open_below(directory.root)
        assert not left or time.monotonic() < deadline, left
        clean = 0 if left else clean + 1
        time.sleep(0.05)
    assert threading.active_count() <= before + 45  # the pool of threads that touches the disk, and no more


def _open_below(root: Path) -> list[str]:
    files = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_there(name)}
    return [name for name in files if str(root) in name]


def _is_there(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")
