"""Joins of a store that takes long, or fails when nobody waits any more: one at a time, and each can be repeated."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from structlog.testing import capture_logs

from aot.errors import BlobPending, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.storage.place import S3Place
from registry.storage.s3_parts import S3PartUploads

BLOB = Blob(digest=Digest.of(b"parts"), size_bytes=5)
KEY = "incoming/mine/parts"


class Store:
    """Holds one upload whose only part is there. A join waits for `may_end`, and fails for as long as `broken`."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.broken = False
        self.forgets = False  # what is being joined, before the object is there
        self.joins = 0

    def get_paginator(self, name: str) -> "Store":
        return self

    def paginate(self, **given: Any) -> Iterator[dict[str, Any]]:
        if self.forgets and self.joins:
            return
        yield {
            "Uploads": [{"Key": KEY, "UploadId": "1", "Initiated": datetime.now(UTC)}],
            "Parts": [{"PartNumber": 1, "Size": BLOB.size_bytes, "ETag": "tag"}],
        }

    def complete_multipart_upload(self, **given: Any) -> None:
        self.joins += 1
        assert self.may_end.wait(20)
        if self.broken:
            answer: Any = {"Error": {"Code": "InternalError"}, "ResponseMetadata": {"HTTPStatusCode": 500}}
            raise ClientError(answer, "CompleteMultipartUpload")


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.may_end.set()


@pytest.fixture
def uploads(store: Store) -> S3PartUploads:
    return S3PartUploads(store, S3Place(bucket="bucket"), presign=lambda *_: "", encryption={})


def joining() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "join-parts"]


def test_many_who_ask_at_once_wait_for_one_join_and_nothing_is_left_of_it(
    store: Store, uploads: S3PartUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Semaphore(0)

    class Counted(Future[bool]):
        def result(self, timeout: float | None = None) -> bool:
            waiting.release()
            return super().result(timeout)

    monkeypatch.setattr("registry.storage.s3_parts.Future", Counted)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(uploads.complete, BLOB, KEY) for _ in range(8)]
        assert all(waiting.acquire(timeout=20) for _ in asked)
        store.may_end.set()
        assert all(one.result(20) for one in asked)
    assert store.joins == 1
    assert uploads._joining == {}


def test_a_join_that_fails_when_nobody_waits_is_logged_and_done_again(
    store: Store, uploads: S3PartUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 0.05)
    store.broken = True
    with capture_logs() as logs:
        with pytest.raises(BlobPending):
            uploads.complete(BLOB, KEY)
        [thread] = joining()
        store.may_end.set()
        thread.join(20)
    assert [(one["event"], one["key"]) for one in logs] == [("parts-not-joined", KEY)]
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 20.0)
    with pytest.raises(StorageUnavailable):
        uploads.complete(BLOB, KEY)
    store.broken = False
    assert uploads.complete(BLOB, KEY)
    assert store.joins == 3


def test_a_join_that_could_not_begin_is_not_waited_for(
    store: Store, uploads: S3PartUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            uploads.complete(BLOB, KEY)
    store.may_end.set()
    assert uploads.complete(BLOB, KEY)


def test_what_a_store_forgets_before_the_object_is_there_is_still_joined(
    store: Store, uploads: S3PartUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as an upload that never came, and its gigabytes be sent again."""
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 0.05)
    store.forgets = True
    for _ in range(2):
        with pytest.raises(BlobPending):
            uploads.complete(BLOB, KEY)
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 20.0)
    threading.Timer(0.05, store.may_end.set).start()
    assert uploads.complete(BLOB, KEY)
    assert store.joins == 1
