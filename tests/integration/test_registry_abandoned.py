"""What was put and became no blob: it is removed where nobody wants it by then either, that and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from aot.schema.names import Namespace
from aot.schema.state import BlobState
from aot.schema.wire.blobs import OpenUploadsRequest
from registry.db import blobs as rows
from registry.deps import Deps
from registry.services import abandoned, arrivals
from registry.services import blobs as blob_service
from registry.services.retention import retain
from tests.integration import test_registry_parts as parts
from tests.integration.test_registry_deleting import content_of, once
from tests.integration.test_registry_parts import (
    BLOB,
    CONTENT,
    DEFAULT,
    OTHER,
    RIGHT,
    SMALL,
    WRONG,
    arrive,
    put,
    settle,
    store_of,
)
from tests.integration.test_registry_retention import DAY, state_of
from tests.service import Service

service, trusting = parts.service, parts.trusting  # fixtures


def test_an_upload_that_is_asked_for_again_at_the_last_moment_is_not_given_up(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, tmp_path / "file", parts=1)
    service.clock.advance(2 * DAY)
    once(monkeypatch, abandoned, "find_abandoned", lambda: put(service, tmp_path / "file", parts=1) and None)
    assert retain(service.deps).given_up == 0
    assert put(service, tmp_path / "file") == 1, "two of three parts are there"


@pytest.mark.parametrize("has_row", [True, False])
def test_what_is_put_at_the_last_moment_is_not_removed_with_what_lay_there(
    trusting: Service, monkeypatch: pytest.MonkeyPatch, has_row: bool
) -> None:
    service = trusting
    if not has_row:
        for _ in range(2):
            service.clock.advance(1.1 * DAY)
            retain(service.deps)
        assert state_of(service, SMALL.digest) is None
    arrive(service, WRONG)
    service.clock.advance(2 * DAY)
    once(monkeypatch, abandoned, "find_abandoned", lambda: arrive(service, RIGHT) and None)
    assert retain(service.deps).given_up == 0
    [arrival] = store_of(service).arrivals()
    with store_of(service).incoming_of(DEFAULT).open(arrival.digest)[0] as stream:
        assert stream.read() == RIGHT
    service.clock.advance(2 * DAY)
    assert retain(service.deps).given_up == 1
    assert list(store_of(service).arrivals()) == []
    with service.deps.sessions.reading() as session:
        seen = rows.seen([SMALL.digest], session).get(SMALL.digest)
    assert seen is None or seen.state is not BlobState.DELETING, "what held others off is gone"


@pytest.mark.parametrize("by", [abandoned.give_up_abandoned, retain], ids=["alone", "after it was condemned"])
def test_who_had_seen_what_was_given_up_is_asked_to_put_it_again(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Callable[[Deps], object]
) -> None:
    put(service, tmp_path / "file")
    assert store_of(service).incoming_of(DEFAULT).complete(BLOB) == len(CONTENT)
    service.clock.advance(2 * DAY)
    once(monkeypatch, blob_service, "observe", lambda: by(service.deps) and None)
    [link] = service.call("open_uploads", OpenUploadsRequest(namespace=DEFAULT, blobs=(BLOB,))).links
    assert len(link.parts) == 3


@pytest.mark.parametrize("binds", [True, False])
def test_an_upload_is_kept_until_its_copy_is_stored(
    trusting: Service, monkeypatch: pytest.MonkeyPatch, binds: bool
) -> None:
    """Another sweeper, that has read wrong bytes in the blob's place, removes the copy right after it was made."""
    service, store = trusting, store_of(trusting)
    monkeypatch.setattr(store._copies, "bound", binds)

    def removed() -> None:
        with service.deps.sessions.transaction() as session:
            seen = rows.find_pending(SMALL.digest, session)
            assert seen is not None and rows.mark_removed(seen, now=service.clock(), session=session)
        store.delete(SMALL.digest)

    service.clock.advance(1)
    if binds:
        once(monkeypatch, arrivals, "_adopt", removed)
    else:
        once(monkeypatch, arrivals, "_adopt_alone", removed)
    arrival = arrive(service, RIGHT)
    assert not settle(arrival, service.deps)
    service.clock.advance(1)
    assert settle(arrival, service.deps)
    assert content_of(service, SMALL.digest) == RIGHT
    assert list(store.arrivals()) == []


def test_a_copy_of_a_blob_that_was_forgotten_meanwhile_is_retentions_to_remove(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, store = trusting, store_of(trusting)
    monkeypatch.setattr(store._copies, "bound", True)

    def forgotten() -> None:
        with service.deps.sessions.transaction() as session:
            for table in ("namespace_blobs", "blobs"):
                session.execute(text(f"DELETE FROM {table}"))

    once(monkeypatch, arrivals, "_adopt", forgotten)
    assert not settle(arrive(service, RIGHT), service.deps)
    assert state_of(service, SMALL.digest) is BlobState.CONDEMNED
    [link] = service.call("open_uploads", OpenUploadsRequest(namespace=Namespace(OTHER), blobs=(SMALL,))).links
    assert link.digest == SMALL.digest and state_of(service, SMALL.digest) is BlobState.PENDING
    for _ in range(2):
        service.clock.advance(1.1 * DAY)
        retain(service.deps)
    assert store.stat(SMALL.digest) is None and state_of(service, SMALL.digest) is None
