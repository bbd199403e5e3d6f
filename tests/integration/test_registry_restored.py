"""A database that was restored from a backup: what came after it is in the records, and is neither lost nor undone."""

import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from aot.errors import BundleWithdrawn, StorageUnavailable, TagNotFound
from aot.schema.digest import Digest
from aot.schema.state import BundleState
from aot.schema.wire.bundles import TagRequest, WithdrawRequest
from aot.trust import TrustedKeys
from registry.services import behind, records
from registry.services.fsck import fsck
from registry.services.reindex import Reindexed
from registry.services.retention import retain
from tests.builders import a_profile
from tests.integration.test_registry_reindex import NOBODY, TAG_OF_ONE, another_of, reindexed, resolve
from tests.integration.test_registry_retention import DAY, a_bundle, file_of
from tests.integration.test_registry_tags import ONE, away
from tests.service import Service, a_service

Restore = Callable[[], AbstractContextManager[Service]]


def url_of(data_dir: Path) -> str:
    return f"sqlite:///{data_dir / 'own.sqlite3'}"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path, database_url=url_of(tmp_path)) as service:
        service.register(a_profile())
        yield service


def backup(service: Service) -> Restore:
    """Take one; called, it gives the service on it, over today's object store."""
    data_dir = service.deps.settings.data_dir
    kept = data_dir / f"backup-{uuid.uuid4().hex}"
    with closing(sqlite3.connect(data_dir / "own.sqlite3")) as now, closing(sqlite3.connect(kept)) as copy:
        now.backup(copy)

    @contextmanager
    def restored() -> Iterator[Service]:
        service.deps.sessions.close()
        for path in data_dir.glob("own.sqlite3*"):
            path.unlink()
        shutil.copy(kept, data_dir / "own.sqlite3")
        with a_service(data_dir, database_url=url_of(data_dir)) as then:
            then.clock.advance((service.clock() - then.clock()).total_seconds() + 60)
            then.register(a_profile())
            yield then

    service.clock.advance(60)  # what follows is later
    return restored


def move(service: Service, bundle: Digest) -> None:
    service.call("tag", TagRequest(bundle=bundle), **ONE)


def stands_for(service: Service) -> list[Digest]:
    return [bundle.digest for bundle in resolve(service, "one", "prod")]


def removed_meanwhile(service: Service, monkeypatch: pytest.MonkeyPatch) -> Restore:
    """A backup with the note that the record of a tag that was removed is to go: the store was away."""
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "delete", away)
        service.call("untag", **ONE)
        return backup(service)


# Tags


@pytest.mark.parametrize("first", ["reindex", "retain"])
def test_a_tag_that_was_removed_in_the_backup_and_set_again_since_comes_back(
    service: Service, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_bundle(service, "one", tags=("prod",))
    second = another_of(service, "one")
    restored = removed_meanwhile(service, monkeypatch)
    retain(service.deps)
    move(service, second)
    assert service.deps.records.find(TAG_OF_ONE) is not None
    with restored() as again:
        if first == "retain":
            retain(again.deps)
        done = reindexed(again)
        assert (done.tags, done.refused, stands_for(again)) == (("default/one:prod",), {}, [second])
        assert (again.sweep().recorded, reindexed(again)) == (0, Reindexed((), (), (), {}))


def test_one_that_was_removed_and_not_set_again_stays_removed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_bundle(service, "one", tags=("prod",))
    restored = removed_meanwhile(service, monkeypatch)
    with restored() as again:
        assert again.deps.records.find(TAG_OF_ONE) is not None
        assert reindexed(again).tags == () and again.deps.records.find(TAG_OF_ONE) is None
        with pytest.raises(TagNotFound):
            resolve(again, "one", "prod")


def test_whoever_can_write_to_the_bucket_keeps_no_record_of_what_was_removed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one that was signed, and one that says what he likes."""
    bundle = a_bundle(service, "one", tags=("prod",))
    signed = service.deps.records.find(TAG_OF_ONE)
    assert signed is not None
    for content in (signed, signed.replace(b"eyJ", b"eyK", 1)):
        removed_meanwhile(service, monkeypatch)
        service.deps.records.put(TAG_OF_ONE, content)
        retain(service.deps)
        assert service.deps.records.find(TAG_OF_ONE) is None
        move(service, bundle)


def test_a_tag_that_has_moved_since_stands_where_it_stood_last(service: Service) -> None:
    first = a_bundle(service, "one", tags=("prod",))
    restored = backup(service)
    second = another_of(service, "one")
    move(service, second)
    with restored() as again:
        assert stands_for(again) == [first]
        done = reindexed(again)
        assert (done.bundles, done.tags, done.moved) == ((second,), (), ("default/one:prod",))
        assert stands_for(again) == [second]
        left = again.call("get_bundle", digest=first)
        assert left.expires_at == again.clock() + again.deps.settings.keep, "it has its time from now on"
        assert (again.sweep().recorded, reindexed(again)) == (0, Reindexed((), (), (), {}))
        move(again, first)
        assert reindexed(again).moved == () and stands_for(again) == [first]


def test_a_tag_whose_last_bundle_expires_meanwhile_stays_where_it_stands(service: Service) -> None:
    first = a_bundle(service, "one", tags=("prod",))
    keys = TrustedKeys.of(str(key.public) for key in service.deps.signing_keys)
    told = records.read_tag(service.deps.records.find(TAG_OF_ONE), keys=keys)
    service.clock.advance(60)
    later = structs.replace(told, bundle=Digest.of(b"gone"), moved_at=service.clock())
    with service.deps.sessions.transaction() as session:
        assert not behind.move(later, now=service.clock(), session=session)
    assert stands_for(service) == [first]


def test_a_row_whose_record_is_not_written_yet_is_not_behind_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clock was ahead when the record was written."""
    first = a_bundle(service, "one", tags=("prod",))
    second = another_of(service, "one")
    service.clock.advance(-600)
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "put", lambda self, name, content: away(self, name))
        move(service, second)
        assert reindexed(service).moved == () and stands_for(service) == [second] != [first]
    service.sweep()
    assert reindexed(service).moved == ()


def test_what_was_removed_after_the_backup_is_named_and_stays(service: Service) -> None:
    bundle, expired = a_bundle(service, "one", tags=("prod",)), a_bundle(service, "two")
    restored = backup(service)
    service.call("untag", **ONE)
    service.clock.advance(89 * DAY)
    service.deps.uses.note((bundle,), now=service.clock())
    service.clock.advance(2 * DAY)
    assert retain(service.deps).bundles == (expired,)
    with restored() as again:
        done = reindexed(again)
        assert set(done.unrecorded) == {TAG_OF_ONE, records.bundle_name(expired)}
        assert (done.bundles, done.tags, stands_for(again)) == ((), (), [bundle])
        again.call("untag", **ONE)
        assert reindexed(again).unrecorded == (records.bundle_name(expired),)


# Bundles


def test_what_was_withdrawn_since_stays_withdrawn(service: Service) -> None:
    bundle, other = a_bundle(service, "one", tags=("prod",)), another_of(service, "one")
    restored = backup(service)
    service.call("withdraw", WithdrawRequest(reason="wrong numbers", replacement=other), digest=bundle)
    with restored() as again:
        assert stands_for(again) == [bundle]
        assert reindexed(again).withdrawn == (bundle,)
        with pytest.raises(BundleWithdrawn, match="wrong numbers"):
            resolve(again, "one", "prod")
        view = again.call("get_bundle", digest=bundle)
        assert (view.state, view.replacement) == (BundleState.WITHDRAWN, other)
        assert (again.sweep().recorded, reindexed(again)) == (0, Reindexed((), (), (), {}))


def test_what_is_live_and_recorded_so_is_not_written_to(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass beside a registry that serves keeps no writer of SQLite waiting for every bundle that there is."""
    a_bundle(service, "one")
    monkeypatch.setattr(service.deps.sessions, "transaction", lambda: pytest.fail("a transaction that writes"))
    assert reindexed(service) == Reindexed((), (), (), {})


def test_bytes_that_were_condemned_in_the_backup_and_are_published_since_live(service: Service) -> None:
    """By reindex before the sweeper: that one goes by the rows alone."""
    file = file_of(service, a_bundle(service, "one", content=b"shared"))
    service.clock.advance(91 * DAY)
    assert file in retain(service.deps).condemned
    restored = backup(service)
    service.register(a_profile())
    bundle = a_bundle(service, "two", content=b"shared")
    service.clock.advance(3 * DAY)
    with restored() as again:
        assert reindexed(again).bundles == (bundle,)
        retain(again.deps)
        assert again.deps.store.stat(file) is not None and file_of(again, bundle) == file


# fsck


def test_fsck_writes_over_no_record_that_its_row_is_behind(service: Service) -> None:
    first, second = a_bundle(service, "one", tags=("prod",)), another_of(service, "one")
    restored = backup(service)
    service.call("withdraw", WithdrawRequest(reason="wrong numbers"), digest=first)
    move(service, second)
    kept = {name: service.deps.records.find(name) for name in (TAG_OF_ONE, records.bundle_name(first))}
    with restored() as again:
        checked = fsck(again.deps, trusted=NOBODY)
        assert not checked.sound and list(checked.suspect_bundles) == [first]
        assert "`reindex`" in checked.suspect_bundles[first]
        assert (checked.later_records, checked.rewritten_records) == ([TAG_OF_ONE], 0)
        assert {name: again.deps.records.find(name) for name in kept} == kept
        reindexed(again)
        checked = fsck(again.deps, trusted=NOBODY)
        assert checked.sound and checked.later_records == [] and checked.rewritten_records == 0
        assert stands_for(again) == [second]


def test_a_tag_that_moves_while_fsck_reads_is_not_behind(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = a_bundle(service, "one", tags=("prod",)), another_of(service, "one")
    service.clock.advance(1)
    read = records.read_tag

    def read_after_a_move(*given, **named):
        if stands_for(service) == [first]:
            move(service, second)
            return read(service.deps.records.find(TAG_OF_ONE), **named)
        return read(*given, **named)

    monkeypatch.setattr(records, "read_tag", read_after_a_move)
    assert fsck(service.deps, trusted=NOBODY).later_records == []
    monkeypatch.undo()
    assert reindexed(service) == Reindexed((), (), (), {}) and stands_for(service) == [second]


def test_a_store_that_is_away_ends_the_pass_and_loses_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    restored = removed_meanwhile(service, monkeypatch)
    move(service, bundle)
    with restored() as again, monkeypatch.context() as patched:
        patched.setattr(type(again.deps.records), "find", away)
        with pytest.raises(StorageUnavailable):
            reindexed(again)
        patched.undo()
        assert reindexed(again).tags == ("default/one:prod",)
