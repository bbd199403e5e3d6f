"""Rows are locked in one order, or not waited for: on PostgreSQL no two transactions wait for each other.

The planner is made to read tables as they lie, and they lie the wrong way round: what says no order takes the higher
digest first, and whoever has the lower one and wants the other one too ends in a deadlock.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Tag
from aot.schema.spec import Blob
from aot.schema.wire.bundles import PushRequest
from aot.schema.wire.workers import Scope
from aot.trust import TrustedKeys
from registry.db import blobs as blob_rows
from registry.db import damage as damage_rows
from registry.db import fleet as fleet_rows
from registry.db import queue
from registry.db import records as record_rows
from registry.db import retention as retention_rows
from registry.db import tags as tag_rows
from registry.db import tokens as token_rows
from registry.db.builds import free
from registry.db.bundles import find_bundle
from registry.db.models import BuildRow, TagRow
from registry.services import records, sweep, tags, unions, unproven
from registry.services.reindex import reindex
from tests.builders import (
    a_blob,
    a_manifest,
    a_profile,
    a_qualification,
    a_readable_artifact,
    a_source,
    a_spec,
    altered,
    manifest_text,
)
from tests.integration.test_registry_bundles import another, tag
from tests.integration.test_registry_retention import a_bundle, file_of
from tests.service import Service, a_service
from tests.stack import Stack, standing_on

AS_IT_LIES = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with standing_on(Stack.SERVERS), a_service(tmp_path) as service:
        engine = service.deps.sessions.engine
        with engine.begin() as connection:
            name = connection.scalar(text("SELECT current_database()"))
            for setting in AS_IT_LIES:
                connection.execute(text(f'ALTER DATABASE "{name}" SET {setting} = off'))
        engine.dispose()  # a connection has the settings of when it was opened
        service.register(a_profile())
        yield service


@pytest.fixture
def bundles(service: Service) -> tuple[Digest, Digest]:
    """Two of one model, the lower digest first; it lies behind the other one."""
    low, high = sorted(another(service, content) for content in (b"1", b"2"))
    service.clock.advance(1)
    lie_last(service, "bundles", "digest", low)
    return low, high


def lie_last(service: Service, table: str, key: str, value: str) -> None:
    with service.deps.sessions.transaction() as session:
        session.execute(text(f"UPDATE {table} SET {key} = {key} WHERE {key} = :value"), {"value": str(value)})


def lock(session: Session, table: str, key: str, value: str, *, as_: str = "UPDATE") -> None:
    session.execute(text(f"SELECT 1 FROM {table} WHERE {key} = :value FOR {as_}"), {"value": str(value)})


def meet(service: Service, act: Callable[[], Any], *, table: str, key: str, first: str, then: str) -> Any:
    """Hold the row `first`, let `act` come to it, and go on to the row `then`, as whoever changes both does."""
    sessions = service.deps.sessions
    with ThreadPoolExecutor(1) as pool:
        with sessions.transaction() as session:
            lock(session, table, key, first)
            going = pool.submit(act)
            wait_for_a_waiter(service)
            lock(session, table, key, then)
        return going.result(20)


def wait_for_a_waiter(service: Service) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with service.deps.sessions.glancing() as connection:
            if connection.scalar(text(waiting)):
                return
        time.sleep(0.01)
    pytest.fail("it waits for nothing")


def in_transaction(service: Service, act: Callable[..., Any], **named: Any) -> Callable[[], Any]:
    def run() -> Any:
        with service.deps.sessions.transaction() as session:
            return act(session=session, **named)

    return run


# Bundles


def test_uses_that_are_written_together(service: Service, bundles: tuple[Digest, Digest]) -> None:
    low, high = bundles
    service.deps.uses.note((high, low), now=service.clock())
    written = meet(
        service,
        lambda: service.deps.uses.flush(service.deps.sessions),
        table="bundles",
        key="digest",
        first=low,
        then=high,
    )
    assert written == 2
    with service.deps.sessions.reading() as session:
        assert {find_bundle(one, session).used_at for one in bundles} == {service.clock()}


def test_bundles_that_a_blob_takes_out_and_that_come_back(service: Service, bundles: tuple[Digest, Digest]) -> None:
    low, high = bundles
    file = file_of(service, low)
    assert file == file_of(service, high)
    out = in_transaction(service, damage_rows.damage_bundles, digest=file, reason="wrong")
    assert meet(service, out, table="bundles", key="digest", first=low, then=high) == (low, high)
    lie_last(service, "bundles", "digest", low)
    back = in_transaction(service, damage_rows.heal_bundles, limit=9)
    assert meet(service, back, table="bundles", key="digest", first=low, then=high) == (low, high)


def test_what_is_taken_out_while_others_are_let_back_stays_out(
    service: Service, bundles: tuple[Digest, Digest]
) -> None:
    """Who lets it back has seen every blob stored, and waits for who has taken one out meanwhile."""
    low, high = bundles
    file, sessions = file_of(service, low), service.deps.sessions
    in_transaction(service, damage_rows.damage_bundles, digest=file, reason="wrong")()
    with sessions.reading() as session:
        blob = damage_rows.find_stored(file, namespace=Namespace("default"), session=session)
    assert blob is not None
    with ThreadPoolExecutor(1) as pool:
        with sessions.transaction() as session:
            assert damage_rows.begin_removal(blob, now=service.clock(), session=session)
            assert damage_rows.damage_bundles(file, reason="wrong again", session=session) == (low, high)
            going = pool.submit(in_transaction(service, damage_rows.heal_bundles, limit=9))
            wait_for_a_waiter(service)
        assert going.result(20) == ()
    with sessions.reading() as session:
        assert set(damage_rows.damages_of(bundles, session)) == set(bundles)


def test_tags_that_move_together_leave_what_they_stood_for(service: Service, bundles: tuple[Digest, Digest]) -> None:
    low, high = bundles
    newer = another(service, b"newer")
    tag(service, "a", high)
    tag(service, "b", low)

    def move(session: Session) -> None:
        row, wanted = find_bundle(newer, session), (Tag("a"), Tag("b"))
        unions.put_tags(wanted, bundle=row, spec=a_spec(), now=service.clock(), session=session)

    meet(service, in_transaction(service, move), table="bundles", key="digest", first=low, then=high)
    assert service.call("get_bundle", digest=newer).tags == ("a", "b")


def test_a_tag_that_is_put_and_removed_while_others_move(service: Service) -> None:
    before, newer = another(service, b"before"), another(service, b"newer")
    tag(service, "a", before)
    place = {"namespace": "default", "name": "mini", "tag": "b"}
    wanted, going = (Tag("a"), Tag("b")), list[Future[Any]]()
    with ThreadPoolExecutor(2) as pool:
        with service.deps.sessions.transaction() as session:
            row = find_bundle(newer, session)
            assert row is not None
            tags.hold(wanted, bundle=row, session=session)
            tags.put(wanted[0], bundle=row, now=service.clock(), session=session)
            going.append(pool.submit(tag, service, "b", before))
            wait(going, timeout=1)  # it waits for its turn
            going.append(pool.submit(service.call, "untag", **place))
            if going[0].done():
                wait_for_a_waiter(service)
            tags.put(wanted[1], bundle=row, now=service.clock(), session=session)
        assert {one.bundle for one in going[1].result(20).removed} <= {before, newer}
        going[0].result(20)


@pytest.mark.parametrize("how", ["a publish", "a submission", "a push once more"])
def test_tags_that_nobody_has_put_yet(service: Service, how: str) -> None:
    """In whatever order somebody names them."""
    proven = a_manifest(profile=a_profile(), artifacts=(a_readable_artifact(),))
    wanted, model = (Tag("b"), Tag("a")), (Namespace("default"), Name("mini"))
    claim = service.claim("cpu-v3", build=service.submit(proven.spec, tags=wanted * (how == "a publish")).build.id)
    other = another(service, b"other") if how == "a publish" else service.publish(claim, proven).bundle
    going: Callable[[], Any] = {
        "a publish": partial(service.publish, claim, proven),
        "a submission": partial(service.submit, proven.spec, tags=wanted),
        "a push once more": partial(service.push, proven, tags=wanted),
    }[how]
    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            for place in ((*model, Tag("a"), Name("cpu-v3")), (*model, Tag("b"), Name("cpu-v3"))):
                assert tag_rows.insert_tag(place, other, now=service.clock(), session=session)
                if place[2] == "a":
                    put = pool.submit(going)
                    wait_for_a_waiter(service)
        put.result(20)
    with service.deps.sessions.reading() as session:
        stand = {row.tag: row.bundle for row in session.query(TagRow)}
    assert set(stand) == {"a", "b"} and len(set(stand.values())) == 1
    assert (stand["a"] == other) == (how != "a publish")


@pytest.mark.parametrize("higher", ["the pushed one", "what the tag stood for"])
def test_a_proof_takes_the_place_of_the_pushed_bundle_and_of_what_its_tag_stood_for(
    service: Service, higher: str
) -> None:
    before = another(service, b"before")
    for number in range(40):  # until its digest is where it is wanted
        pushed = a_manifest(a_spec(source=a_source(b"%d" % number)), artifacts=(a_readable_artifact(),))
        reply = service.push(pushed, tags=("prod",))
        if (reply.bundle > before) == (higher == "the pushed one"):
            break
    digest = reply.bundle
    tag(service, "prod", before)
    service.clock.advance(1)
    claim = service.claim("cpu-v3", build=reply.build)
    first, then = sorted((digest, before))
    proven = altered(pushed, qualification=a_qualification(seconds=3.0))
    done = meet(service, lambda: service.publish(claim, proven), table="bundles", key="digest", first=first, then=then)
    assert service.call("get_bundle", digest=digest).replacement == done.bundle
    assert service.call("get_bundle", digest=done.bundle).tags == ("prod",)


def test_whoever_ends_a_note_and_whoever_removes_the_bundle_once_more(
    service: Service, bundles: tuple[Digest, Digest]
) -> None:
    """Retention holds the bundle, then notes that its record is to go."""
    low, _ = bundles
    with service.deps.sessions.transaction() as session:
        record_rows.begin_forgetting([low], now=service.clock(), session=session)
    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            lock(session, "bundles", "digest", low)
            going = pool.submit(records.forget_due, service.deps)
            wait_for_a_waiter(service)
            record_rows.begin_forgetting([low], now=service.clock(), session=session)
        assert going.result(20) == 1
    assert records.forget_due(service.deps) == 1, "it was asked for again, so it is still to go"
    assert service.sweep().recorded == 1


# Profiles and workers


def test_a_push_and_whoever_publishes_for_its_profile_with_a_blob_of_both(service: Service) -> None:
    """A push comes to its profile first, since it may change it; others when they insert what refers to it."""
    target = a_profile("cpu-x86-64-v3")
    assert target.is_cpu_target
    service.register(target)
    manifest = a_manifest(a_spec(profile=target.name), profile=target, artifacts=(a_readable_artifact(),))
    service.upload((*manifest.blobs, *manifest.spec.blobs))
    pushing = PushRequest(manifest=manifest_text(manifest)[0])
    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            lock(session, "blobs", "digest", manifest.blobs[0].digest)
            going = pool.submit(service.call, "push", pushing)
            wait_for_a_waiter(service)
            lock(session, "profiles", "name", target.name, as_="KEY SHARE")
        assert going.result(20).build is not None


def test_a_worker_that_comes_back_and_its_claim(service: Service) -> None:
    service.clock.advance(service.deps.settings.worker_lives.total_seconds() + 1)
    [build] = queued(service, "one")
    assert reasons(service)[build]
    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            fleet_rows.touch_worker(Name("worker-1"), now=service.clock(), session=session)
            going = pool.submit(service.register, a_profile())
            wait_for_a_waiter(service)
            lock(session, "builds", "id", build)
        going.result(20)
    assert not reasons(service)[build]


# Builds: whoever changes several waits for none


def queued(service: Service, *names: str) -> list[str]:
    service.clock.advance(1)
    return [service.submit(a_spec(name)).build.id for name in names]


def reasons(service: Service) -> dict[str, str]:
    return {one.id: one.waiting for one in service.call("list_builds").builds}


def meanwhile(service: Service, build: str, act: Callable[[], Any]) -> Any:
    """`act` while somebody changes that build: it does not wait for the end."""
    with ThreadPoolExecutor(1) as pool, service.deps.sessions.transaction() as session:
        lock(session, "builds", "id", build)
        return pool.submit(act).result(20)


def test_leases_that_ran_out_or_are_too_long(service: Service) -> None:
    builds = queued(service, "one", "two")
    for build in builds:
        service.claim(Name("cpu-v3"), build=build)
    lease = service.deps.settings.lease
    service.clock.advance(-lease.total_seconds() * 9)  # the clock was ahead
    assert meanwhile(service, builds[0], lambda: sweep.expire_leases(service.deps)) == ((), ())
    service.clock.advance(lease.total_seconds() + 1)
    assert meanwhile(service, builds[0], lambda: sweep.expire_leases(service.deps)) == ((builds[1],), ())
    assert sweep.expire_leases(service.deps) == ((), ()), "its lease was not shortened then, and is now"
    service.clock.advance(lease.total_seconds() + 1)
    assert sweep.expire_leases(service.deps) == ((builds[0],), ())


def test_what_several_builds_are_taken_for_keeps_nobody_from_referring_to_them(service: Service) -> None:
    """A line of a log, or the token of a claim."""
    builds = queued(service, "one", "two")
    with ThreadPoolExecutor(1) as pool, service.deps.sessions.transaction() as session:
        assert list(session.scalars(free(BuildRow.id.in_(builds)))) == sorted(builds)
        refer = in_transaction(service, lock, table="builds", key="id", value=builds[0], as_="KEY SHARE")
        pool.submit(refer).result(20)
        others = in_transaction(service, lambda session: list(session.scalars(free())))
        assert pool.submit(others).result(20) == []


def test_tickets_that_are_sent_again(service: Service) -> None:
    builds = queued(service, "one", "two")
    for worker in ("worker-2", "worker-3"):
        service.register(a_profile(), worker=worker)
    service.clock.advance(service.deps.settings.resend_after.total_seconds() + 1)
    assert meanwhile(service, builds[0], lambda: sweep.resend_tickets(service.deps)) == (builds[1],)
    assert sweep.resend_tickets(service.deps) == (builds[0],)


def test_why_builds_wait_and_that_they_wait_no_more(service: Service) -> None:
    builds = queued(service, "one", "two")
    service.clock.advance(service.deps.settings.worker_lives.total_seconds() + 1)
    assert meanwhile(service, builds[0], lambda: sweep.explain_waiting(service.deps)) == 1
    assert [bool(reasons(service)[build]) for build in builds] == [False, True]
    assert sweep.explain_waiting(service.deps) == 1
    unless = tuple(set(reasons(service).values()))
    ready = in_transaction(service, queue.make_ready, profile=Name("cpu-v3"), unless=unless)
    meanwhile(service, builds[0], ready)
    assert [bool(reasons(service)[build]) for build in builds] == [True, False]
    ready()
    assert not any(reasons(service).values())


def test_pushed_bundles_that_nobody_proves_are_rejected_one_after_another(service: Service) -> None:
    """Whoever holds the build of the second waits for nothing that the rejection of the first holds."""
    replies = [service.push(a_manifest(a_spec(name), artifacts=(a_readable_artifact(),))) for name in ("one", "two")]
    first, second = sorted(replies, key=lambda reply: reply.bundle)
    service.clock.advance(service.deps.settings.keep_pending.total_seconds() + 1)
    assert meet(
        service,
        lambda: unproven.reject_unproven(service.deps),
        table="builds",
        key="id",
        first=second.build,
        then=first.build,
    ) == ((first.bundle, second.bundle), False)


# Blobs and tokens


def test_the_blobs_of_a_bundle_that_reindex_brings_back_and_those_of_its_source(service: Service) -> None:
    """A client that pushes both takes them in their order, whichever the bundle names."""
    (source,) = a_spec("one", source=a_source(b"source of one")).blobs
    content = next(content for content in map(str.encode, "abcdefghijkl") if Digest.of(content) > source.digest)
    bundle = a_bundle(service, "one", content=content)
    file = file_of(service, bundle)
    assert source.digest < file, "it comes after the files, and has the lower digest"
    with service.deps.sessions.transaction() as session:
        retention_rows.delete_bundles([bundle], session)
    done = meet(
        service,
        lambda: reindex(service.deps, trusted=TrustedKeys.of(())),
        table="blobs",
        key="digest",
        first=source.digest,
        then=file,
    )
    assert (done.bundles, done.damaged) == ((bundle,), ())


def test_a_blob_that_others_make_known_while_reindex_brings_back_a_bundle_with_it(service: Service) -> None:
    """It waits for their row, which nobody sees yet, with no blob in hand; else they would wait for one of those.

    So would whoever has the next blob and wants one of those, too: of three, each waits for another.
    """
    bundle = a_bundle(service, "one", content=b"of one")
    file, (source,) = file_of(service, bundle), a_spec("one", source=a_source(b"source of one")).blobs
    with service.deps.sessions.transaction() as session:
        retention_rows.delete_bundles([bundle], session)
        for table in ("namespace_blobs", "blobs"):
            session.execute(text(f"DELETE FROM {table} WHERE digest = :value"), {"value": str(file)})
    others = Blob(digest=file, size_bytes=len(b"of one"))
    with ThreadPoolExecutor(2) as pool:
        with service.deps.sessions.transaction() as session:
            blob_rows.make_known([others], now=service.clock(), session=session)
            going = pool.submit(reindex, service.deps, trusted=TrustedKeys.of(()))
            wait_for_a_waiter(service)
            third = in_transaction(service, blob_rows.hold_blobs, digests=[source.digest])
            assert pool.submit(third).result(20) == (), "it has none in hand"
            assert blob_rows.hold_blobs([source.digest, file], session=session) == ()
        assert going.result(20).bundles == (bundle,)


def test_a_blob_that_others_make_known_meanwhile(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that one opens for upload: before he comes to it, others have made it known, and one of them holds it."""
    file = file_of(service, a_bundle(service, "one"))
    content = next(content for content in map(str.encode, "abcdefghijkl") if Digest.of(content) < file)
    both = (a_blob(content), Blob(digest=file, size_bytes=len(b"one")))
    going: list[Future[Any]] = []
    touch = blob_rows.touch_views

    def meanwhile(*given: Any, **named: Any) -> None:
        monkeypatch.undo()
        going.append(pool.submit(service.upload, both[:1]))
        wait([*going], timeout=1)  # it waits where the row is there already, for nobody to see
        hold = in_transaction(service, blob_rows.hold_blobs, digests=[blob.digest for blob in both])
        going.append(pool.submit(hold))
        wait_for_a_waiter(service)
        touch(*given, **named)

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(blob_rows, "touch_views", meanwhile)
        service.upload(both)
        assert [one.result(20) for one in going][1] == ()


def test_two_that_come_to_a_new_namespace_with_a_blob_that_others_have(service: Service) -> None:
    """One opens the upload, the other submits with it: both make the namespace known."""
    a_bundle(service, "one")
    (source,) = a_spec("one", source=a_source(b"source of one")).blobs
    fresh = Namespace("fresh")
    with ThreadPoolExecutor(1) as pool:
        with service.deps.sessions.transaction() as session:
            blob_rows.ensure_namespace(fresh, now=service.clock(), session=session)
            going = pool.submit(service.upload, [source], namespace=fresh)
            wait_for_a_waiter(service)
            assert blob_rows.hold_blobs((source.digest,), session=session) == ()
        assert going.result(20) == [source.digest]


def test_tokens_that_end_together(service: Service) -> None:
    for _ in range(2):
        service.token(Scope.READ)
    with service.deps.sessions.transaction() as session:
        session.execute(text("UPDATE tokens SET label = 'both', expires_at = :at"), {"at": service.clock()})
    with service.deps.sessions.reading() as session:
        low, *_ = sorted(session.scalars(text("SELECT hash FROM tokens")))
    lie_last(service, "tokens", "hash", low)
    with ThreadPoolExecutor(1) as pool, service.deps.sessions.transaction() as session:
        lock(session, "tokens", "hash", low)
        before = service.clock() + timedelta(days=1)
        expired = in_transaction(service, lambda session: token_rows.delete_expired(session, before=before) and None)
        assert pool.submit(expired).result(20) is None
        session.rollback()
    with service.deps.sessions.reading() as session:
        assert list(session.scalars(text("SELECT hash FROM tokens"))) == [low]
