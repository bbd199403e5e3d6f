"""Tags are removed: what they pinned has its time from then on, and they do not come back with a lost database."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aot.errors import BundleNotFound, Forbidden, InvalidDigest, StorageUnavailable, TagMoved, TagNotFound
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.state import BundleState
from aot.schema.wire.bundles import BundleView, TagRequest, WithdrawRequest
from aot.schema.wire.workers import Scope
from registry.db import records as record_rows
from registry.db import retention as retention_rows
from registry.db import tags as tag_rows
from registry.services import records
from registry.services.retention import plan, retain
from tests.builders import a_manifest, a_profile, a_spec
from tests.integration.test_registry_bundles import MODEL, NOWHERE, V2, another, resolve, tag
from tests.integration.test_registry_reindex import TAG_OF_ONE, lose_the_database, reindexed
from tests.integration.test_registry_retention import DAY, a_bundle, is_known, later
from tests.service import Service, a_service

ONE = {"namespace": "default", "name": "one", "tag": "prod"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile(), V2)
        yield service


def untag(service: Service, which: str, expected: Digest | None = None, **fields: Any) -> list[tuple[str, Digest]]:
    query = {} if expected is None else {"expected": str(expected)}
    reply = service.call("untag", query=query, tag=which, **{**MODEL, **fields})
    return [(view.profile, view.bundle) for view in reply.removed]


def two_profiles(service: Service) -> tuple[Digest, Digest]:
    """The bundles that mini:v1 stands for, of the lower level and of the higher one."""
    low = service.published(a_spec(profile="cpu-v2"), tags=("v1",)).bundle
    return low, service.published(a_spec(), tags=("v1",)).bundle


# Removal


def test_a_removed_tag_stands_for_nothing_whatever_the_profile(service: Service) -> None:
    low, high = two_profiles(service)
    tag(service, "v2", high)
    with capture_logs() as told:
        assert untag(service, "v1") == [("cpu-v2", low), ("cpu-v3", high)]
    [line] = [line for line in told if line["event"] == "tag-removed"]
    assert (line["reference"], line["bundles"]) == ("default/mini:v1", [low, high]) and line["by"]
    with pytest.raises(TagNotFound):
        resolve(service, "v1")
    assert resolve(service, "v2") == [high] == resolve(service, high)
    with pytest.raises(TagNotFound, match="there is no default/mini:v1"):
        untag(service, "v1")
    tag(service, "v1", low)
    assert resolve(service, "v1") == [low]


def test_with_what_is_expected_only_that_goes(service: Service) -> None:
    low, high = two_profiles(service)
    for expected in (another(service, b"other"), Digest.of(b"unknown"), NOWHERE):
        with pytest.raises(TagMoved) as refusal:
            untag(service, "v1", expected)
        assert refusal.value.details == {"found": [low, high]}
    assert untag(service, "v1", low) == [("cpu-v2", low)]
    assert resolve(service, "v1") == [high]
    with pytest.raises(TagMoved):
        untag(service, "v1", low)
    assert untag(service, "v1", high) == [("cpu-v3", high)]
    with pytest.raises(TagNotFound):
        untag(service, "v1", high)


def test_a_guard_that_is_empty_or_no_digest_removes_nothing(service: Service) -> None:
    two_profiles(service)
    for text in ("", "v1", "sha256:0"):
        with pytest.raises(InvalidDigest):
            service.call("untag", query={"expected": text}, tag="v1", **MODEL)
    assert len(resolve(service, "v1")) == 2


def test_who_may_not_tag_there_may_not_remove_and_learns_nothing(service: Service) -> None:
    two_profiles(service)
    stranger, reader = service.token(Scope.TAG, namespaces=("ours",)), service.token(Scope.READ)
    for token in (stranger, reader):
        told = []
        for name in ("v1", "v9"):
            with pytest.raises(Forbidden) as refusal:
                untag(service, name, token=token)
            told.append(refusal.value.message)
        assert told[0] == told[1]
    assert len(resolve(service, "v1")) == 2


# What stays, and how long


def moved_away(service: Service, bundle: Digest) -> None:
    tag(service, "prod", another(service, b"newer"))


def moved_with_a_guard(service: Service, bundle: Digest) -> None:
    tag(service, "prod", another(service, b"newer"), expected=bundle)


def removed(service: Service, bundle: Digest) -> None:
    untag(service, "prod")


def removed_with_a_guard(service: Service, bundle: Digest) -> None:
    untag(service, "prod", bundle)


@pytest.mark.parametrize("leave", [moved_away, moved_with_a_guard, removed, removed_with_a_guard])
def test_what_a_tag_has_held_for_a_year_has_its_time_from_when_the_tag_leaves_it(
    service: Service, leave: Callable[[Service, Digest], None]
) -> None:
    bundle = service.published(a_spec(), tags=("prod",)).bundle
    assert later(service, days=365).bundles == ()
    service.register(a_profile())
    leave(service, bundle)
    assert later(service, days=89).bundles == ()
    assert bundle in later(service, days=2).bundles and not is_known(service, bundle)


def test_a_move_that_is_refused_is_no_use(service: Service) -> None:
    loose, tagged = another(service, b"1"), another(service, b"2")
    tag(service, "prod", tagged)
    service.clock.advance(80 * DAY)
    with pytest.raises(TagMoved):
        tag(service, "prod", tagged, expected=loose)
    with pytest.raises(TagMoved):
        untag(service, "prod", loose)
    assert later(service, days=11).bundles == (loose,)


def test_another_tag_still_pins(service: Service) -> None:
    bundle = service.published(a_spec(), tags=("prod", "release-1")).bundle
    untag(service, "prod")
    assert later(service, days=365).bundles == () and resolve(service, "release-1") == [bundle]


def view_of(service: Service, bundle: Digest) -> BundleView:
    view: BundleView = service.call("get_bundle", digest=bundle)
    [listed] = [one for one in service.call("search").bundles if one.digest == bundle]
    assert listed == view
    return view


def test_a_bundle_says_when_it_goes_and_goes_then(service: Service) -> None:
    bundle = service.published(a_spec(), tags=("prod",)).bundle
    assert view_of(service, bundle).expires_at is None
    service.clock.advance(5 * DAY)
    untag(service, "prod")
    assert view_of(service, bundle).expires_at == service.clock() + service.deps.settings.keep
    service.clock.advance(40 * DAY)
    service.call("resolve", target=bundle, **MODEL)
    service.deps.uses.flush(service.deps.sessions)
    assert view_of(service, bundle).expires_at == service.clock() + service.deps.settings.keep
    goes_when_it_says(service, bundle)


@pytest.mark.parametrize("used", [False, True])
def test_a_withdrawn_one_too(service: Service, used: bool) -> None:
    bundle = another(service, b"wrong")
    service.clock.advance(5 * DAY)
    view = service.call("withdraw", WithdrawRequest(reason="wrong"), digest=bundle)
    assert view.expires_at == service.clock() + service.deps.settings.keep_out
    if used:
        service.clock.advance(DAY)
        service.deps.uses.note((bundle,), now=service.clock())
        service.deps.uses.flush(service.deps.sessions)
        assert view_of(service, bundle).expires_at == view.expires_at + timedelta(days=1)
    goes_when_it_says(service, bundle)


def test_what_waits_for_its_proof_says_no_day(service: Service) -> None:
    reply = service.push(a_manifest())
    assert reply.state is BundleState.PENDING and view_of(service, reply.bundle).expires_at is None


def goes_when_it_says(service: Service, bundle: Digest) -> None:
    goes = view_of(service, bundle).expires_at
    assert goes is not None
    service.clock.now = goes
    assert plan(service.deps).bundles == () == retain(service.deps).bundles
    service.clock.advance(1)
    assert plan(service.deps).bundles == (bundle,) == retain(service.deps).bundles


# Meetings


def test_of_eight_that_remove_a_tag_one_does(service: Service) -> None:
    bundle = service.published(a_spec(), tags=("prod",)).bundle

    def attempt(_: int) -> list[tuple[str, Digest]]:
        try:
            return untag(service, "prod")
        except TagNotFound:
            return []

    with ThreadPoolExecutor(8) as pool:
        assert [one for one in pool.map(attempt, range(8)) if one] == [[("cpu-v3", bundle)]]


def test_a_tag_that_others_make_and_remove_meanwhile_is_set(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at it: one saw no tag to move, the next one could not make it."""
    bundle, insert = another(service, b"1"), tag_rows.insert_tag

    def made_and_removed(*given: Any, **named: Any) -> bool:
        monkeypatch.setattr(tag_rows, "insert_tag", insert)
        return False

    monkeypatch.setattr(tag_rows, "insert_tag", made_and_removed)
    tag(service, "prod", bundle)
    assert resolve(service, "prod") == [bundle]


def test_tags_that_move_and_go_at_once_leave_nothing_without_its_time(service: Service) -> None:
    """Four movers without a guard, one with, and one who removes: a year on, whatever lost the tag has just lost it."""
    bundles = [another(service, b"%d" % number) for number in range(5)]
    tag(service, "prod", bundles[0])
    service.clock.advance(365 * DAY)

    def move(number: int) -> None:
        for _ in range(4):
            tag(service, "prod", bundles[number])

    def move_guarded(number: int) -> None:
        for _ in range(4):
            try:
                tag(service, "prod", bundles[number], expected=resolve(service, "prod")[0])
            except (TagMoved, TagNotFound):
                pass

    def remove(_: int) -> None:
        for _ in range(4):
            try:
                untag(service, "prod")
            except TagNotFound:
                pass

    with ThreadPoolExecutor(6) as pool:
        for going in [pool.submit(move, n) for n in range(4)] + [pool.submit(move_guarded, 4), pool.submit(remove, 0)]:
            going.result()
    tag(service, "prod", bundles[0])
    lost = {bundle for bundle in bundles if view_of(service, bundle).expires_at is not None}
    assert lost >= set(bundles[1:4])
    for bundle in bundles[1:4]:
        assert view_of(service, bundle).expires_at == service.clock() + service.deps.settings.keep
    assert not set(bundles[:4]) & set(retain(service.deps).bundles)


def test_of_a_removal_and_retention_that_meet_neither_takes_a_bundle_before_its_time(service: Service) -> None:
    bundles = [a_bundle(service, f"m{number}", tags=("prod",)) for number in range(6)]
    service.clock.advance(365 * DAY)
    ended = threading.Event()

    def sweeping() -> list[Digest]:
        gone: list[Digest] = []
        while not ended.is_set():
            gone.extend(retain(service.deps).bundles)
        return gone

    def removing(number: int) -> None:
        untag(service, "prod", name=f"m{number}")

    with ThreadPoolExecutor(4) as pool:
        sweepers = [pool.submit(sweeping) for _ in range(2)]
        try:
            list(pool.map(removing, range(6)))
        finally:
            ended.set()
        assert [sweeper.result() for sweeper in sweepers] == [[], []]
    assert all(is_known(service, bundle) for bundle in bundles)
    assert set(later(service, days=91).bundles) == set(bundles)


def test_a_tag_that_is_set_while_the_sweeper_holds_its_bundle_is_refused_or_keeps_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes after the sweeper's second look waits for its end, and is told that the bundle has expired."""
    bundle = a_bundle(service, "one")
    service.clock.advance(91 * DAY)
    held, delete = threading.Event(), retention_rows.delete_bundles

    def slow(*given: Any) -> None:
        held.set()
        time.sleep(0.3)
        delete(*given)

    monkeypatch.setattr(retention_rows, "delete_bundles", slow)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(retain, service.deps)
        assert held.wait(20)
        with pytest.raises(BundleNotFound):
            service.call("tag", TagRequest(bundle=bundle), **ONE)
        assert going.result(20).bundles == (bundle,)
    with pytest.raises(TagNotFound):
        service.call("untag", **ONE)


# Records


def content_of(service: Service) -> bytes | None:
    return service.deps.records.find(TAG_OF_ONE)


def test_a_removed_tag_does_not_come_back_with_a_lost_database(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod", "v1"))
    service.call("untag", **ONE)
    assert content_of(service) is None
    assert reindexed(service).tags == ()
    with lose_the_database(service, tmp_path) as again:
        done = reindexed(again)
        assert (done.bundles, done.tags, done.refused) == ((bundle,), ("default/one:v1",), {})


def test_a_tag_that_is_set_again_is_recorded_again(service: Service, tmp_path: Path) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    service.call("untag", **ONE)
    service.call("tag", TagRequest(bundle=bundle), **ONE)
    assert content_of(service) is not None
    retain(service.deps)
    assert service.sweep().recorded == 0
    with lose_the_database(service, tmp_path) as again:
        assert reindexed(again).tags == ("default/one:prod",)


def away(self: object, name: str) -> None:
    raise StorageUnavailable("the store is away", hint="wait")


def test_a_record_that_outlived_its_tag_is_removed_later_and_not_believed_until_then(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "delete", away)
        assert [view.bundle for view in service.call("untag", **ONE).removed] == [bundle]
        assert content_of(service) is not None
        with pytest.raises(StorageUnavailable):
            reindexed(service)
    assert reindexed(service).tags == () and content_of(service) is None
    with lose_the_database(service, tmp_path) as again:
        assert reindexed(again).tags == ()


def test_the_sweeper_removes_what_the_request_could_not(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "delete", away)
        service.call("untag", **ONE)
    # And where the tag stands again by then, its record is written anew.
    service.call("tag", TagRequest(bundle=bundle), **ONE)
    before = content_of(service)
    retain(service.deps)
    assert content_of(service) is None and service.sweep().recorded == 1
    assert content_of(service) == before
    assert records.forget_due(service.deps) == 0


def test_a_record_that_is_written_after_its_tag_was_removed_goes_too(service: Service) -> None:
    """One process reads the row, another removes tag and record, then the first one's write arrives."""
    a_bundle(service, "one", tags=("prod",))
    with service.deps.sessions.transaction() as session:
        row = tag_rows.find_tag(("default", "one", "prod", "cpu-v3"), session)
        assert row is not None
        record_rows.forget_tag_recorded(row, session=session)
    kept = service.deps.records

    class Slow:
        def put(self, name: str, content: bytes) -> None:
            service.call("untag", **ONE)
            assert kept.find(name) is None
            kept.put(name, content)

    records.write_due(replace(service.deps, records=Slow()))
    assert content_of(service) is not None
    retain(service.deps)
    assert content_of(service) is None


@pytest.mark.parametrize("seen", ["note", "record"])
def test_a_tag_that_is_removed_while_reindex_reads_does_not_come_back(
    service: Service, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reindex has read the record when the tag goes; it sees the note, or that the record is gone."""
    a_bundle(service, "one", tags=("prod",))
    read = records.read_tag

    def read_and_remove(*given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        with monkeypatch.context() as patched:
            if seen == "note":
                patched.setattr(type(service.deps.records), "delete", away)
            service.call("untag", **ONE)
        assert (content_of(service) is not None) == (seen == "note")
        return found

    monkeypatch.setattr(records, "read_tag", read_and_remove)
    assert reindexed(service).tags == ()
    with pytest.raises(TagNotFound):
        service.call("resolve", namespace="default", name="one", target="prod")
    retain(service.deps)
    assert content_of(service) is None


def test_of_a_tag_alone_the_others_wait(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request removes the records of its own tag, however many others are due."""
    a_bundle(service, "one", tags=("prod",))
    a_bundle(service, "two", tags=("prod",))
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "delete", away)
        service.call("untag", namespace="default", name="two", tag="prod")
    service.call("untag", **ONE)
    assert content_of(service) is None and service.deps.records.find("tags/default/two/prod/cpu-v3.json") is not None
    records.forget_soon(service.deps, Reference("default/two:prod"))
    assert list(service.deps.records.list("tags/")) == []
