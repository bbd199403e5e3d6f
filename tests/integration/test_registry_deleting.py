"""Deletes that are stopped half-way, for any time, while others delete the same blob and clients put it again."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from aot.errors import BlobMissing, BlobPending
from aot.schema.digest import Digest
from aot.schema.state import BlobState
from aot.schema.wire.bundles import PublishRequest
from registry.db import blobs as rows
from registry.services import blobs as blob_service
from registry.services import fsck, reindex
from registry.services.retention import retain
from tests.builders import a_profile, manifest_text
from tests.integration.test_registry_fsck import blob_of, checked, overwrite, resolve
from tests.integration.test_registry_retention import (
    DAY,
    a_built,
    a_bundle,
    a_claim,
    file_of,
    later,
    state_of,
)
from tests.service import Service, a_service

OWN = b"wanted again"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


@pytest.fixture
def loose(service: Service) -> Digest:
    """The file of a bundle that nobody has used for long: condemned two days ago, so the next pass deletes it."""
    file = file_of(service, a_bundle(service, "loose", content=OWN))
    later(service, days=91)
    service.clock.advance(2 * DAY)
    return file


def once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, happens: Callable[[], None]) -> None:
    """The next call of `place.name` answers as it would have, after `happens`, which sees it as it was before."""
    call = getattr(place, name)

    def slow(*given: Any, **named: Any) -> Any:
        answer = call(*given, **named)
        monkeypatch.setattr(place, name, call)
        happens()
        return answer

    monkeypatch.setattr(place, name, slow)


def content_of(service: Service, digest: Digest) -> bytes:
    with service.deps.store.open(digest) as stream:
        return stream.read()


def test_a_sweeper_that_was_stopped_deletes_nothing_that_was_published_since(
    service: Service, loose: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Digest] = []

    def others_go_on() -> None:
        service.clock.advance(601)  # whoever began has died, by all signs
        ended.extend(retain(service.deps).deleted)
        service.register(a_profile())
        a_bundle(service, "again", tags=("prod",), content=OWN)

    once(monkeypatch, service.deps.store, "version", others_go_on)
    retain(service.deps)
    assert loose in ended
    assert (content_of(service, loose), state_of(service, loose)) == (OWN, BlobState.STORED)
    assert checked(service).sound


def test_nor_where_it_has_lost_the_database_between_the_row_and_the_delete(
    service: Service, loose: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saw of the row is out of date then; the version that it saw before is not what lies there."""
    is_deleting = rows.is_deleting

    def stopped_after_it(digest: Digest, **named: Any) -> bool:
        answer = is_deleting(digest, **named)
        if digest == loose:
            service.deps.store.delete(loose)  # by another, and put again since
            with service.deps.store.incoming(blob_of(loose)) as writer:
                writer.write(OWN)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(rows, "is_deleting", stopped_after_it)
        assert loose not in retain(service.deps).deleted
    assert (content_of(service, loose), state_of(service, loose)) == (OWN, BlobState.DELETING)
    service.clock.advance(601)
    assert loose in retain(service.deps).deleted, "a later pass looks again"


def test_a_publish_does_not_count_on_bytes_that_were_removed_after_it_had_looked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_bundle(service, tags=("prod",), content=OWN)
    file = file_of(service, first)
    claim = a_claim(service, "twin")
    text, _ = manifest_text(a_built(claim, OWN))
    overwrite(service, file, OWN[::-1])
    once(monkeypatch, blob_service, "observe", lambda: checked(service))

    def publish() -> Digest:
        return service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build).bundle

    with pytest.raises(BlobPending, match="removed while they were looked for"):
        publish()
    with pytest.raises(BlobMissing):
        publish()
    assert service.upload([blob_of(file)]) == [file]
    twin = publish()
    assert service.sweep().healed == (first,)
    assert (resolve(service), content_of(service, file)) == ([first], OWN)
    assert checked(service).sound and service.call("get_bundle", digest=twin).withdrawn_reason == ""


def test_fsck_removes_nothing_that_was_mended_after_it_had_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = a_bundle(service, tags=("prod",), content=OWN)
    file = file_of(service, bundle)
    overwrite(service, file, OWN[::-1])

    def another_mends_it() -> None:
        assert set(checked(service).damaged_blobs) == {file}
        service.clock.advance(1)
        assert service.upload([blob_of(file)]) == [file]
        assert service.sweep().healed == (bundle,)

    hash_ = fsck._hash

    def read(digest: Digest, deps: Any) -> Any:
        answer = hash_(digest, deps)
        if digest == file:
            reads.append(digest)
            if len(reads) == 2:  # it reads what differs twice
                monkeypatch.setattr(fsck, "_hash", hash_)
                another_mends_it()
        return answer

    reads: list[Digest] = []
    monkeypatch.setattr(fsck, "_hash", read)
    assert checked(service).sound
    assert (resolve(service), content_of(service, file)) == ([bundle], OWN)


def test_reindex_does_not_count_on_bytes_that_were_removed_after_it_had_looked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle of the store whose bytes another bundle's upload has rows for."""
    bundle = a_bundle(service, tags=("prod",), content=OWN)
    file = file_of(service, bundle)
    service.sweep()
    with service.deps.sessions.transaction() as session:
        for table in ("tags", "kernels", "guards", "artifact_blobs", "artifacts", "bundles"):
            session.execute(text(f"DELETE FROM {table}"))

    def removed() -> None:
        with service.deps.sessions.transaction() as session:
            session.execute(text("UPDATE blobs SET state = 'pending', stored_at = NULL, condemned_at = created_at"))
        service.deps.store.delete(file)

    once(monkeypatch, blob_service, "observe", removed)
    found = reindex.reindex(service.deps, trusted=fsck.TrustedKeys.of(()))
    assert (found.bundles, found.damaged) == ((bundle,), (bundle,))
    assert state_of(service, file) is BlobState.PENDING


def test_of_two_sweepers_at_one_blob_the_second_waits_until_the_first_has_deleted_it(
    service: Service, loose: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is slow in the store, and taken for dead. What is put once the blob is forgotten stays."""
    delete, going = service.deps.store.delete, threading.Event()
    order: list[str] = []

    def slow(digest: Digest, **named: Any) -> bool:
        if digest != loose:
            return delete(digest, **named)
        first = not going.is_set()
        order.append("first begins" if first else "second")
        going.set()
        if first:
            time.sleep(0.7)
        done = delete(digest, **named)
        if first:
            order.append("first ends")
        return done

    monkeypatch.setattr(service.deps.store, "delete", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(retain, service.deps)
        assert going.wait(20)
        service.clock.advance(601)
        second = pool.submit(retain, service.deps)
        deleted = [*first.result(20).deleted, *second.result(20).deleted]
    assert order[:2] == ["first begins", "first ends"]
    assert deleted.count(loose) == 1 and state_of(service, loose) is None
    assert service.upload([blob_of(loose)]) == [loose]
    assert content_of(service, loose) == OWN


def test_nobody_who_writes_waits_for_a_slow_store(
    service: Service, loose: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.db.session.BUSY_SECONDS", 0.5)
    delete, going, written = service.deps.store.delete, threading.Event(), threading.Event()

    def slow(digest: Digest, **named: Any) -> bool:
        if digest == loose:
            going.set()
            assert written.wait(20)
        return delete(digest, **named)

    monkeypatch.setattr(service.deps.store, "delete", slow)
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(retain, service.deps)
        try:
            assert going.wait(20)
            service.register(a_profile())
        finally:
            written.set()
        assert loose in deleting.result(20).deleted
    assert state_of(service, loose) is None
