"""Blobs that are held while the object store works: nobody opens or counts on them, and nobody waits for them."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from aot.errors import BlobPending
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from aot.schema.wire.blobs import OpenUploadsRequest
from registry.db import blobs as blob_rows
from registry.db import damage as damage_rows
from registry.db import held as rows
from registry.db import retention as retention_rows
from registry.deps import Deps
from registry.services import damage, holding
from registry.services.retention import retain
from registry.services.sweep import sweep
from tests.builders import a_blob, a_profile
from tests.integration import test_registry_deleting as deletes
from tests.integration.test_registry_retention import DAY, state_of
from tests.service import Service
from tests.statements import plan_of

service = deletes.service  # fixture
CONTENT = b"opened, and never put"
STORED = b"opened, and put"
HOLD_MINUTES = 10


class Killed(BaseException):
    """What ends a process between two steps: nothing that the code would handle."""


def opened(service: Service, content: bytes = CONTENT) -> Blob:
    blob = a_blob(content)
    service.call("open_uploads", OpenUploadsRequest(namespace=Namespace("default"), blobs=(blob,)))
    return blob


def unknown(service: Service) -> Blob:
    return a_blob(CONTENT)


def condemned(service: Service) -> Blob:
    blob = opened(service)
    service.clock.advance(1.1 * DAY)
    assert retain(service.deps).condemned == (blob.digest,)
    return blob


def hold_of(digest: Digest, deps: Deps) -> Callable[..., rows.Held | None]:
    return partial(rows.hold, digest, now=deps.clock(), unless=lambda session: False)


def held(digest: Digest, deps: Deps):
    return holding.held(digest, hold_of(digest, deps), sessions=deps.sessions)


@pytest.mark.parametrize(
    ("before", "after"),
    [(opened, BlobState.PENDING), (condemned, BlobState.CONDEMNED), (unknown, None)],
    ids=["opened", "condemned", "unknown"],
)
def test_whoever_opens_an_upload_of_a_held_blob_is_told_to_come_again(
    service: Service, before: Callable[[Service], Blob], after: BlobState | None
) -> None:
    blob = before(service)
    with held(blob.digest, service.deps) as mine:
        assert mine is not None and state_of(service, blob.digest) is BlobState.DELETING
        with pytest.raises(BlobPending, match="or moved to their place"):
            service.upload([blob])
    assert state_of(service, blob.digest) is after
    assert service.upload([blob]) == [blob.digest]


def test_a_stored_blob_is_in_nobodys_way(service: Service) -> None:
    """What else arrived of it goes, and those who have the blob already go on."""
    blob = a_blob(STORED)
    service.register(a_profile())
    deletes.a_bundle(service, tags=("prod",), content=STORED)
    with held(blob.digest, service.deps) as mine:
        assert mine is not None and state_of(service, blob.digest) is BlobState.STORED
        assert service.upload([blob]) == []
    assert state_of(service, blob.digest) is BlobState.STORED


def test_what_was_seen_before_a_blob_was_held_counts_no_more(service: Service) -> None:
    blob = opened(service)

    def as_seen(seen: rows.PendingBlob | None) -> bool:
        with service.deps.sessions.reading() as session:
            row = session.get(blob_rows.BlobRow, blob.digest)
            found = blob_rows.seen([blob.digest], session)[blob.digest] if seen is None else seen
            return blob_rows.is_as_seen(row, found)

    with service.deps.sessions.reading() as session:
        before = blob_rows.seen([blob.digest], session)[blob.digest]
        pending = blob_rows.find_pending(blob.digest, session)
    assert pending is not None and as_seen(before)
    service.clock.advance(1)
    with held(blob.digest, service.deps):
        with service.deps.sessions.reading() as session:
            meanwhile = blob_rows.seen([blob.digest], session)[blob.digest]
            assert blob_rows.find_pending(blob.digest, session) is None
        assert not as_seen(before)
    assert not as_seen(before) and not as_seen(meanwhile) and as_seen(None)
    with service.deps.sessions.transaction() as session:
        assert not blob_rows.mark_hashed(blob, pending, now=service.clock(), session=session)


def test_nobody_holds_what_another_holds_or_deletes(service: Service) -> None:
    blob = opened(service)
    with held(blob.digest, service.deps), service.deps.sessions.transaction() as session:
        assert hold_of(blob.digest, service.deps)(session) is None
    service.clock.advance(1)
    with service.deps.sessions.transaction() as session:
        session.get(blob_rows.BlobRow, blob.digest).state = BlobState.DELETING
        session.get(blob_rows.BlobRow, blob.digest).condemned_at = service.clock()
    with held(blob.digest, service.deps) as mine:
        assert mine is None
    assert state_of(service, blob.digest) is BlobState.DELETING


def test_of_two_at_one_blob_the_second_waits_until_the_first_is_done(service: Service) -> None:
    blob, order, going = opened(service), [], threading.Event()

    def work(name: str, seconds: float) -> None:
        with held(blob.digest, service.deps) as mine:
            assert mine is not None
            order.append(f"{name} begins")
            going.set()
            time.sleep(seconds)
            order.append(f"{name} ends")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(work, "first", 0.4)
        assert going.wait(20)
        pool.submit(work, "second", 0).result(20)
        first.result(20)
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_who_opens_the_upload_before_it_is_held_is_seen(service: Service) -> None:
    """Also where that was not committed yet when the other began to look."""
    blob, namespace = opened(service), Namespace("default")
    service.clock.advance(2 * DAY)
    now = service.clock()

    def wanted(session: Session) -> bool:
        return bool(blob_rows.lately_wanted((blob.digest,), since=now, session=session))

    def hold() -> rows.Held | None:
        with service.deps.sessions.transaction() as session:
            return rows.hold(blob.digest, session, now=now, unless=wanted)

    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            assert blob_rows.hold_blobs((blob.digest,), session=session) == ()
            going = pool.submit(hold)
            time.sleep(0.3)
            blob_rows.touch_views((blob.digest,), namespace=namespace, now=now, session=session)
        assert going.result(20) is None


@pytest.mark.parametrize(
    ("before", "later_pass", "after"),
    [(opened, sweep, BlobState.PENDING), (condemned, retain, BlobState.PENDING), (unknown, retain, None)],
    ids=["opened", "condemned", "unknown"],
)
def test_what_a_killed_process_has_left_held_is_released_by_a_later_pass(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[Service], Blob],
    later_pass: Callable[[Deps], object],
    after: BlobState | None,
) -> None:
    blob = before(service)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(rows, "release", killed)
        with held(blob.digest, service.deps):
            pass
    # PostgreSQL tells that nobody has the blob's turn any more; SQLite cannot.
    patience = holding.ORPHANED if service.deps.sessions.shared else holding.STUCK
    service.clock.advance(patience.total_seconds() - 1)
    later_pass(service.deps)
    assert state_of(service, blob.digest) is BlobState.DELETING, "whoever holds it may live"
    service.clock.advance(2)
    later_pass(service.deps)
    assert state_of(service, blob.digest) is after
    assert service.upload([blob]) == [blob.digest]


def killed(*_given: object, **_named: object) -> None:
    raise Killed


MONTH = 30 * DAY


def left_held(service: Service, monkeypatch: pytest.MonkeyPatch) -> Digest:
    digest = opened(service).digest
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(rows, "release", killed)
        with held(digest, service.deps):
            pass
    return digest


def half_deleted(service: Service, monkeypatch: pytest.MonkeyPatch) -> Digest:
    digest = condemned(service).digest
    service.clock.advance(1.1 * DAY)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(retention_rows, "forget_blob", killed)
        retain(service.deps)
    return digest


def half_removed(service: Service, monkeypatch: pytest.MonkeyPatch) -> Digest:
    service.register(a_profile())
    deletes.a_bundle(service, tags=("prod",), content=STORED)
    with service.deps.sessions.reading() as session:
        blob = damage_rows.find_stored(Digest.of(STORED), namespace=Namespace("default"), session=session)
    assert blob is not None
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(damage_rows, "end_removal", killed)
        damage.quarantine(blob, reason="other bytes", deps=service.deps)
    return blob.digest


@pytest.mark.parametrize(
    ("leave", "later_pass", "after"),
    [(left_held, sweep, BlobState.PENDING), (half_deleted, retain, None), (half_removed, sweep, BlobState.PENDING)],
    ids=["held", "half deleted", "half removed"],
)
def test_nobody_waits_as_long_as_the_clock_was_ahead(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[Service, pytest.MonkeyPatch], Digest],
    later_pass: Callable[[Deps], object],
    after: BlobState | None,
) -> None:
    service.clock.advance(MONTH)
    digest = leave(service, monkeypatch)
    service.clock.advance(-60)  # as two clocks may differ: whoever is at it may live
    later_pass(service.deps)
    assert state_of(service, digest) is BlobState.DELETING
    service.clock.advance(-MONTH)
    later_pass(service.deps)
    assert state_of(service, digest) is after


def test_what_somebody_still_works_on_is_not_released_however_long_that_takes(service: Service) -> None:
    """A copy of gigabytes; and nobody's pass waits for it."""
    blob = opened(service)
    with held(blob.digest, service.deps):
        service.clock.advance(60 * HOLD_MINUTES + 1)
        assert holding.end_half_done(service.deps) == 0
        assert state_of(service, blob.digest) is BlobState.DELETING
    assert state_of(service, blob.digest) is BlobState.PENDING


def test_who_was_taken_for_dead_changes_nothing_of_what_came_after(service: Service) -> None:
    blob = opened(service)
    with service.deps.sessions.transaction() as session:
        slow = hold_of(blob.digest, service.deps)(session)
    assert slow is not None
    service.clock.advance(60 * HOLD_MINUTES + 1)
    assert holding.end_half_done(service.deps) == 1
    with held(blob.digest, service.deps):
        with service.deps.sessions.transaction() as session:
            rows.release(slow, session)
        assert state_of(service, blob.digest) is BlobState.DELETING
    assert state_of(service, blob.digest) is BlobState.PENDING


def test_bytes_that_came_to_a_place_that_was_held_for_nothing_are_retentions_to_remove(service: Service) -> None:
    blob = a_blob(CONTENT)
    with held(blob.digest, service.deps), service.deps.sessions.transaction() as session:
        blob_rows.account_for(blob, now=service.clock(), session=session)
    assert state_of(service, blob.digest) is BlobState.PENDING
    for _ in range(2):
        service.clock.advance(1.1 * DAY)
        retain(service.deps)
    assert state_of(service, blob.digest) is None


def test_held_blobs_are_found_by_their_own_index(service: Service) -> None:
    """Every pass of the sweeper looks for them, among millions of others."""
    with service.deps.sessions.reading() as session:
        sent: list[tuple[str, Any]] = []
        event.listen(session.connection(), "before_cursor_execute", lambda *given: sent.append(given[2:4]))
        assert rows.half_done(session, **holding.stuck(service.clock()), limit=10) == []
        [asked] = sent
        plan = plan_of(*asked, session.connection())
    assert any("ix_blobs_held" in line for line in plan), plan
