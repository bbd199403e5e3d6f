"""Two sweepers at one upload, in a store that takes whatever it is sent: the slow one acts on bytes that are gone."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aot.schema.names import Namespace
from aot.schema.state import BlobState
from aot.schema.wire.blobs import OpenUploadsRequest
from registry.db.models import BlobRow
from registry.services import blobs, sweep
from tests.builders import BYTES, a_blob, a_profile
from tests.service import Service, a_service

RIGHT = b"the right bytes"
WRONG = b"the wrong bytes"


class TrustingStore:
    """Takes whatever it is sent. `while_read` happens once, when somebody has read bytes and not yet acted on them."""

    enforces_checksum = False

    def __init__(self, store) -> None:
        self.store, self.content = store, {}
        self.while_read: Callable[[], None] = lambda: None

    def stat(self, digest):
        return len(self.content[digest]) if digest in self.content else None

    def open(self, digest):
        stream, happens = io.BytesIO(self.content[digest]), self.while_read
        self.while_read = lambda: None
        happens()
        return stream

    def version(self, digest):
        return str(id(self.content[digest])) if digest in self.content else None

    def delete(self, digest, *, version=None):
        if version is not None and self.version(digest) not in (version, None):
            return False
        self.content.pop(digest, None)
        return True

    def upload_link(self, blob, *, expires_in):
        return self.store.upload_link(blob, expires_in=expires_in)

    download_link = upload_link


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        object.__setattr__(service.deps, "store", TrustingStore(service.deps.store))
        service.register(a_profile())
        service.call("open_uploads", OpenUploadsRequest(namespace=Namespace("default"), blobs=(a_blob(RIGHT),)))
        yield service


def settle(service: Service) -> bool:
    deps = service.deps
    return blobs.settle_upload(a_blob(RIGHT), store=deps.store, sessions=deps.sessions, clock=deps.clock)


def put(service: Service, content: bytes) -> None:
    service.deps.store.content[a_blob(RIGHT).digest] = content


def state(service: Service) -> BlobState:
    with service.deps.sessions.reading() as session:
        return session.get(BlobRow, a_blob(RIGHT).digest).state


def test_right_bytes_are_stored_and_wrong_ones_removed(service: Service) -> None:
    assert not settle(service), "nothing has arrived"
    put(service, WRONG)
    assert not settle(service)
    assert (service.deps.store.content, state(service)) == ({}, BlobState.PENDING)
    put(service, RIGHT)
    assert settle(service)
    assert (state(service), BYTES[a_blob(RIGHT).digest]) == (BlobState.STORED, RIGHT)
    assert not settle(service), "it is stored already"


def test_who_read_wrong_bytes_does_not_remove_the_right_ones_that_came_meanwhile(service: Service) -> None:
    def others_mend_it() -> None:
        assert not settle(service)  # another sweeper removes the same wrong bytes
        put(service, RIGHT)  # the client sends them again
        service.clock.advance(1)
        assert settle(service)

    put(service, WRONG)
    service.deps.store.while_read = others_mend_it
    assert not settle(service)
    assert service.deps.store.content == {a_blob(RIGHT).digest: RIGHT}
    assert state(service) is BlobState.STORED


def test_nor_before_anybody_has_hashed_them(service: Service) -> None:
    def others_upload_again() -> None:
        assert not settle(service)
        put(service, RIGHT)

    put(service, WRONG)
    service.deps.store.while_read = others_upload_again
    assert not settle(service)
    assert service.deps.store.content == {a_blob(RIGHT).digest: RIGHT}
    assert settle(service)


def test_who_read_right_bytes_does_not_count_on_them_once_another_has_removed_bytes(service: Service) -> None:
    def others_remove() -> None:
        put(service, WRONG)
        assert not settle(service)

    put(service, RIGHT)
    service.deps.store.while_read = others_remove
    assert not settle(service)
    assert (service.deps.store.content, state(service)) == ({}, BlobState.PENDING)


def test_one_bad_read_removes_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    put(service, RIGHT)
    right, reads = service.deps.store.open, []

    def flaky(digest):
        reads.append(digest)
        return io.BytesIO(WRONG) if len(reads) == 1 else right(digest)

    monkeypatch.setattr(service.deps.store, "open", flaky, raising=False)
    assert settle(service)
    assert (len(reads), state(service)) == (2, BlobState.STORED)


def test_uploads_that_never_arrive_keep_nobody_from_his_turn(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older upload has arrived; a full pass of younger ones has not, and each of them is opened twice."""
    put(service, RIGHT)
    service.clock.advance(1)
    never = tuple(a_blob(f"never {number}".encode()) for number in range(sweep.MOST_HASHED))
    for namespace in ("default", "other"):
        service.call("open_uploads", OpenUploadsRequest(namespace=Namespace(namespace), blobs=never))
    digests = sorted((*(blob.digest for blob in never), a_blob(RIGHT).digest))
    after = digests[(digests.index(a_blob(RIGHT).digest) + 1) % len(digests)]
    assert sweep.hash_uploads(service.deps, start=after) == 0, "it is the last of the order, and one too many"
    asked: list[str] = []
    stat = service.deps.store.stat
    monkeypatch.setattr(service.deps.store, "stat", lambda digest: asked.append(digest) or stat(digest), raising=False)
    assert sweep.hash_uploads(service.deps, start=a_blob(RIGHT).digest) == 1
    assert len(asked) == len(set(asked)) == sweep.MOST_HASHED
    assert state(service) is BlobState.STORED
