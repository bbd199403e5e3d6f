"""What was put and became no blob: it is removed where nobody wants it by then either, that and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient
from sqlalchemy import text

from aot.errors import BlobPending, StorageUnavailable
from aot.schema.names import Namespace, Tag
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from aot.schema.wire.blobs import OpenUploadsRequest
from aot.schema.wire.builds import SubmitRequest
from aot.schema.wire.bundles import PublishRequest, WithdrawRequest
from aot.trust import TrustedKeys
from registry.db import blobs as rows
from registry.db import held as held_rows
from registry.deps import Deps
from registry.services import abandoned, arrivals
from registry.services import blobs as blob_service
from registry.services.hashing import Hashing
from registry.services.reindex import reindex
from registry.services.retention import retain
from registry.storage.s3_incoming import key_of
from tests.builders import BYTES, a_manifest, a_spec, manifest_text
from tests.integration import test_registry_parts as parts
from tests.integration.test_registry_deleting import content_of, once
from tests.integration.test_registry_fsck import checked
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


def test_of_many_a_pass_gives_up_what_it_has_time_for(trusting: Service) -> None:
    service = trusting
    for namespace in (DEFAULT, OTHER):
        arrive(service, WRONG, namespace=namespace)
    service.clock.advance(2 * DAY)
    first, second = (retain(service.deps, seconds=0) for _ in range(2))
    assert [(one.given_up, one.unfinished) for one in (first, second)] == [(1, True), (1, False)]
    assert list(store_of(service).arrivals()) == []


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
            assert seen is not None
            held = held_rows.hold_pending(seen, session, now=service.clock())
            assert held is not None
        store.delete(SMALL.digest)
        with service.deps.sessions.transaction() as session:
            held_rows.release(held, session)

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


def in_store(monkeypatch: pytest.MonkeyPatch, operation: str, happens: Callable[[], None]) -> list[str]:
    """Let something happen at each such request to the store, before it answers. Returns what was asked of it."""
    call, asked = BaseClient._make_api_call, []

    def slow(client: Any, name: str, given: Any) -> Any:
        asked.append(name)
        if operation in (name, "every"):
            happens()
        return call(client, name, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", slow)
    return asked


def lay_in_place(service: Service, blob: Blob, content: bytes) -> None:
    """As a copy that went wrong, or another's."""
    store = store_of(service)
    store._client.put_object(Bucket=store._bucket, Key=key_of(store._prefix, blob.digest), Body=content)


def an_upload_is_given_up(service: Service, path: Path) -> str:
    put(service, path, parts=1)
    service.clock.advance(2 * DAY)
    assert retain(service.deps).given_up == 1
    return "AbortMultipartUpload"


def an_arrival_is_given_up(service: Service, path: Path) -> str:
    put(service, path)
    assert store_of(service).incoming_of(DEFAULT).complete(BLOB) == len(CONTENT)
    service.clock.advance(2 * DAY)
    assert retain(service.deps).given_up == 1
    return "DeleteObject"


def an_arrival_is_adopted(service: Service, path: Path) -> str:
    assert not store_of(service).binds_copies
    put(service, path)
    assert service.sweep().hashed == 1
    return "CopyObject"


def wrong_bytes_are_removed(service: Service, path: Path) -> str:
    put(service, path, parts=1)
    lay_in_place(service, BLOB, WRONG)
    assert service.sweep().hashed == 0
    assert store_of(service).stat(BLOB.digest) is None
    return "DeleteObject"


def a_bundle_lives_and_goes(service: Service, path: Path) -> str:
    spec = a_spec()

    def upload(*blobs: Blob) -> None:
        for blob in blobs:
            put(service, path, BYTES[blob.digest], blob=blob)

    upload(*spec.blobs)
    build = service.call("submit", SubmitRequest(spec=spec, tags=(Tag("prod"),))).build
    claim = service.claim(spec.profile, build=build.id)
    manifest = a_manifest(claim.spec, profile=claim.profile)
    upload(*manifest.blobs)
    sent = PublishRequest(manifest=manifest_text(manifest)[0])
    bundle = service.call("publish", sent, token=claim.token, build=claim.build).bundle
    service.call("withdraw", WithdrawRequest(reason="a better one"), digest=bundle)
    service.sweep()
    assert reindex(service.deps, trusted=TrustedKeys.of(())).bundles == ()
    file = manifest.blobs[0]
    lay_in_place(service, file, WRONG)
    assert set(checked(service).damaged_blobs) == {file.digest}
    with service.deps.sessions.transaction() as session:
        session.execute(text("DELETE FROM tags"))
    service.clock.advance(100 * DAY)
    assert retain(service.deps).bundles == (bundle,)
    service.clock.advance(2 * DAY)
    assert {blob.digest for blob in spec.blobs} <= set(retain(service.deps).deleted)
    return "DeleteObject"


@pytest.mark.parametrize(
    "work",
    [
        an_upload_is_given_up,
        an_arrival_is_given_up,
        an_arrival_is_adopted,
        wrong_bytes_are_removed,
        a_bundle_lives_and_goes,
    ],
)
def test_no_request_to_the_store_keeps_a_writer_waiting(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Service, Path], str]
) -> None:
    def others_write() -> None:
        with service.deps.sessions.transaction() as session:
            session.execute(text("UPDATE workers SET seen_at = seen_at"))

    monkeypatch.setattr("registry.db.session.BUSY_SECONDS", 0.2)
    asked = in_store(monkeypatch, "every", others_write)
    assert work(service, tmp_path / "file") in asked


def test_whoever_opens_an_upload_while_it_is_given_up_is_told_to_come_again(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opens() -> None:
        with pytest.raises(BlobPending):
            service.call("open_uploads", OpenUploadsRequest(namespace=DEFAULT, blobs=(BLOB,)))
        told.append(BLOB.digest)

    told: list[str] = []
    with monkeypatch.context() as patched:
        in_store(patched, "AbortMultipartUpload", opens)
        an_upload_is_given_up(service, tmp_path / "file")
    assert told == [BLOB.digest]
    assert put(service, tmp_path / "file") == 3


def test_where_the_store_fails_the_upload_can_be_gone_on_with_at_once(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise StorageUnavailable("the store does not answer", hint="")

    with monkeypatch.context() as patched, pytest.raises(StorageUnavailable):
        in_store(patched, "AbortMultipartUpload", fails)
        an_upload_is_given_up(service, tmp_path / "file")
    assert put(service, tmp_path / "file") == 2


def test_while_it_is_copied_nobody_else_stores_or_copies_the_blob(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sweeper finds right bytes in the place, which the copy is about to write over."""
    service, others = trusting, []

    def another_settles() -> None:
        service.clock.advance(1)
        lay_in_place(service, SMALL, RIGHT)
        others.append(settle(theirs, replace(service.deps, hashing=Hashing())))
        assert state_of(service, SMALL.digest) is BlobState.DELETING

    mine = arrive(service, RIGHT)
    theirs = arrive(service, RIGHT, namespace=Namespace(OTHER))
    asked = in_store(monkeypatch, "CopyObject", another_settles)
    assert settle(mine, service.deps)
    assert (others, asked.count("CopyObject")) == ([False], 1)
    assert (content_of(service, SMALL.digest), state_of(service, SMALL.digest)) == (RIGHT, BlobState.STORED)


def test_an_upload_that_a_killed_sweeper_has_left_held_goes_with_a_later_pass(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(held_rows, "release", killed)
        in_store(patched, "AbortMultipartUpload", killed)
        an_upload_is_given_up(service, tmp_path / "file")
    assert (retain(service.deps).given_up, len(list(store_of(service).part_uploads()))) == (0, 1)
    service.clock.advance(DAY)
    assert (retain(service.deps).given_up, list(store_of(service).part_uploads())) == (1, [])
