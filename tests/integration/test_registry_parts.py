"""Large blobs in the registry: nothing counts before it was hashed, wrong bytes go, abandoned uploads are given up."""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from aot.client import HttpTransport
from aot.client.blobs import put_blob
from aot.client.retry import ONCE
from aot.errors import BlobMissing, BlobPending, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob, Spec
from aot.schema.wire.blobs import Link, OpenUploadsRequest
from aot.schema.wire.builds import SubmitRequest
from registry.db import blobs as rows
from registry.deps import Deps
from registry.services import arrivals
from registry.services.arrivals import settle_arrival
from registry.services.hashing import Hashing
from registry.services.retention import plan, retain
from registry.storage.parts import Arrival
from registry.storage.place import MIB
from registry.storage.s3 import S3BlobStore
from tests.builders import BYTES, a_profile, a_spec
from tests.nanio import nanio_server
from tests.service import Service, a_service

CONTENT = bytes(range(251)) * (11 * MIB // 251)
BLOB = Blob(digest=Digest.of(CONTENT), size_bytes=len(CONTENT))
DAY = 86400.0
DEFAULT, OTHER = Namespace("default"), Namespace("other")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with nanio_server(tmp_path / "nanio", keys={"test": "test"}) as url:
        bucket = f"blobs-{uuid.uuid4().hex}"
        boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
        where = f"s3://{bucket}/p?endpoint={url}&region=us-east-1&largest_put=5MiB&part=5MiB"
        with a_service(tmp_path / "data", AOT_BLOB_URL=where) as service:
            service.register(a_profile())
            # As a store that compares digests by itself: what came in parts is hashed even so.
            store_of(service).enforces_checksum = True
            yield service


def store_of(service: Service) -> S3BlobStore:
    assert isinstance(service.deps.store, S3BlobStore)
    return service.deps.store


def large_spec() -> Spec:
    spec = a_spec()
    return msgspec.structs.replace(spec, source=msgspec.structs.replace(spec.source, tree=BLOB))


def put(
    service: Service,
    path: Path,
    content: bytes = CONTENT,
    *,
    blob: Blob = BLOB,
    parts: int | None = None,
    namespace: Namespace = DEFAULT,
) -> int:
    """Put what the registry lacks of the blob, or so many parts of it; return how many requests that were."""
    path.write_bytes(content)
    links = service.call("open_uploads", OpenUploadsRequest(namespace=namespace, blobs=(blob,))).links
    sent = 0
    for link in links:
        some = msgspec.structs.replace(link, parts=link.parts[:parts])
        put_blob(HttpTransport(), some, path, timeout_seconds=20, retry=ONCE)
        sent += len(some.parts)
    return sent


def test_a_source_in_parts_waits_until_it_was_hashed(service: Service, tmp_path: Path) -> None:
    request = SubmitRequest(spec=large_spec())
    assert put(service, tmp_path / "file") == 3
    with pytest.raises(BlobPending, match="still being hashed"):
        service.call("submit", request)
    assert put(service, tmp_path / "file") == 0, "gigabytes are not asked for twice"
    assert service.sweep().hashed == 1
    assert service.sweep().hashed == 0
    assert service.call("submit", request).created


def test_a_source_whose_last_part_is_missing_is_missing(service: Service, tmp_path: Path) -> None:
    assert put(service, tmp_path / "file", parts=2) == 2
    assert service.sweep().hashed == 0
    with pytest.raises(BlobMissing):
        service.call("submit", SubmitRequest(spec=large_spec()))
    assert put(service, tmp_path / "file") == 1
    assert service.sweep().hashed == 1
    assert service.call("submit", SubmitRequest(spec=large_spec())).created


def test_other_bytes_in_parts_never_count_and_are_removed(service: Service, tmp_path: Path) -> None:
    wrong = bytes(len(CONTENT))
    assert hashlib.sha256(wrong).hexdigest() != BLOB.digest.hex
    put(service, tmp_path / "file", wrong)
    with pytest.raises(BlobPending):
        service.call("submit", SubmitRequest(spec=large_spec()))
    assert service.sweep().hashed == 0
    assert service.deps.store.stat(BLOB.digest) is None
    with pytest.raises(BlobMissing) as raised:
        service.call("submit", SubmitRequest(spec=large_spec()))
    assert "bytes of another digest are removed" in raised.value.hint
    assert put(service, tmp_path / "file") == 3
    assert service.sweep().hashed == 1
    assert service.call("submit", SubmitRequest(spec=large_spec())).created


def test_a_blob_in_parts_of_another_size_than_the_request_names_is_refused(service: Service, tmp_path: Path) -> None:
    more = CONTENT + b"x"
    said = Blob(digest=BLOB.digest, size_bytes=len(more))
    put(service, tmp_path / "file", more, blob=said)
    assert store_of(service).incoming_of(Namespace("default")).complete(said) == len(more)
    with pytest.raises(SizeMismatch):
        service.call("submit", SubmitRequest(spec=large_spec()))


def test_an_upload_that_nobody_goes_on_with_is_given_up(service: Service, tmp_path: Path) -> None:
    put(service, tmp_path / "file", parts=1)
    assert retain(service.deps).given_up == 0
    service.clock.advance(0.9 * DAY)
    put(service, tmp_path / "file", parts=1)  # asked for again: it is gone on with
    service.clock.advance(0.5 * DAY)
    assert (plan(service.deps).given_up, retain(service.deps).given_up) == (0, 0)
    service.clock.advance(0.6 * DAY)
    assert (plan(service.deps).given_up, len(list(store_of(service).part_uploads()))) == (1, 1)
    assert retain(service.deps).given_up == 1
    assert list(store_of(service).part_uploads()) == []
    assert retain(service.deps).given_up == 0
    assert put(service, tmp_path / "file") == 3


def test_another_tenant_spoils_nobodys_upload(service: Service, tmp_path: Path) -> None:
    lie = Blob(digest=BLOB.digest, size_bytes=BLOB.size_bytes - MIB)
    put(service, tmp_path / "theirs", bytes(lie.size_bytes), blob=lie, namespace=OTHER)
    assert put(service, tmp_path / "file", parts=1) == 1
    assert store_of(service).incoming_of(OTHER).complete(lie) == lie.size_bytes
    assert service.sweep().hashed == 0
    assert put(service, tmp_path / "file") == 2, "what was put stays put"
    with pytest.raises(BlobPending):
        service.call("submit", SubmitRequest(spec=large_spec()))
    put(service, tmp_path / "theirs", bytes(lie.size_bytes), blob=lie, namespace=OTHER)
    assert service.sweep().hashed == 1
    assert service.call("submit", SubmitRequest(spec=large_spec())).created
    with store_of(service).open(BLOB.digest) as stream:
        assert stream.read() == CONTENT


def test_wrong_parts_that_are_completed_late_write_over_nothing(service: Service, tmp_path: Path) -> None:
    put(service, tmp_path / "theirs", bytes(len(CONTENT)), namespace=OTHER)  # completed by nobody yet
    put(service, tmp_path / "file")
    service.call("open_uploads", OpenUploadsRequest(namespace=DEFAULT, blobs=(BLOB,)))
    assert service.sweep().hashed == 1
    assert not store_of(service).creates_if_absent, "no condition protects what is stored"
    store_of(service).incoming_of(OTHER).complete(BLOB)
    assert service.sweep().hashed == 0
    with store_of(service).open(BLOB.digest) as stream:
        assert stream.read() == CONTENT


def test_where_the_store_compares_nothing_a_link_that_still_works_writes_over_nothing(
    service: Service, tmp_path: Path
) -> None:
    store_of(service).enforces_checksum = False
    right, wrong = b"right" * 20, b"wrong" * 20
    blob = Blob(digest=Digest.of(right), size_bytes=len(right))
    paths = {content: tmp_path / content[:5].decode() for content in (right, wrong)}
    for content, path in paths.items():
        path.write_bytes(content)

    def link(namespace: Namespace) -> Link:
        [found] = service.call("open_uploads", OpenUploadsRequest(namespace=namespace, blobs=(blob,))).links
        return found

    mine, theirs = link(DEFAULT), link(OTHER)
    put_blob(HttpTransport(), theirs, paths[wrong], timeout_seconds=20, retry=ONCE)
    put_blob(HttpTransport(), mine, paths[right], timeout_seconds=20, retry=ONCE)
    assert service.sweep().hashed == 1
    put_blob(HttpTransport(), theirs, paths[wrong], timeout_seconds=20, retry=ONCE)
    put_blob(HttpTransport(), mine, paths[wrong], timeout_seconds=20, retry=ONCE)
    assert service.sweep().hashed == 0
    with store_of(service).open(blob.digest) as stream:
        assert stream.read() == right


RIGHT, WRONG = b"right" * 20, b"wrong" * 20
SMALL = Blob(digest=Digest.of(RIGHT), size_bytes=len(RIGHT))


def arrive(service: Service, content: bytes, *, namespace: Namespace = DEFAULT) -> Arrival:
    """What a PUT through a link of the namespace does."""
    store = store_of(service)
    incoming = store.incoming_of(namespace)
    store._client.put_object(Bucket=incoming.bucket, Key=incoming._key(SMALL.digest), Body=content)
    return Arrival(digest=SMALL.digest, namespace=namespace, arrived_at=service.clock())


@pytest.fixture
def trusting(service: Service) -> Service:
    """In front of a store that compares no checksum, and no version of what it copies."""
    store_of(service).enforces_checksum = False
    assert not store_of(service).binds_copies
    for namespace in (DEFAULT, OTHER):
        service.call("open_uploads", OpenUploadsRequest(namespace=namespace, blobs=(SMALL,)))
    return service


def swap_while_copied(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other namespace puts wrong bytes just before its upload is copied, and the right ones back at once."""
    copy = store_of(service)._client.copy_object

    def swapped(**given: Any) -> Any:
        if f"/{OTHER}/" not in given["CopySource"]["Key"]:
            return copy(**given)
        arrive(service, WRONG, namespace=OTHER)
        done = copy(**given)
        arrive(service, RIGHT, namespace=OTHER)
        return done

    monkeypatch.setattr(store_of(service)._client, "copy_object", swapped)


def settle(arrival: Arrival, deps: Deps) -> bool:
    return settle_arrival(arrival, deps, seconds=60)


def test_bytes_that_were_swapped_while_they_were_copied_are_never_stored(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_while_copied(trusting, monkeypatch)
    arrival = arrive(trusting, RIGHT, namespace=OTHER)
    assert not settle(arrival, trusting.deps)
    if trusting.deps.store.stat(SMALL.digest) is not None:
        # A second began in between, and the upload counts as another: the next pass looks at the copy.
        assert not settle(arrival, trusting.deps)
    assert trusting.deps.store.stat(SMALL.digest) is None
    with trusting.deps.sessions.reading() as session:
        assert rows.find_pending(SMALL.digest, session) is not None
    trusting.clock.advance(1)
    assert settle(arrive(trusting, RIGHT), trusting.deps)
    with trusting.deps.store.open(SMALL.digest) as stream:
        assert stream.read() == RIGHT


@pytest.mark.parametrize("another_has", ["stored it", "copied it"])
def test_a_slow_sweeper_copies_nothing_over_what_another_has_copied(
    trusting: Service, monkeypatch: pytest.MonkeyPatch, another_has: str
) -> None:
    swap_while_copied(trusting, monkeypatch)
    right, theirs = arrive(trusting, RIGHT), arrive(trusting, RIGHT, namespace=OTHER)
    hash_ = trusting.deps.hashing.hash

    def slow(*given: Any, **named: Any) -> Any:
        hashed = hash_(*given, **named)
        monkeypatch.setattr(trusting.deps.hashing, "hash", hash_)
        trusting.clock.advance(1)
        if another_has == "copied it":  # and the rest later
            monkeypatch.setattr(arrivals, "_settle_copy", lambda *given, **named: False)
        assert settle(right, replace(trusting.deps, hashing=Hashing())) == (another_has == "stored it")
        return hashed

    monkeypatch.setattr(trusting.deps.hashing, "hash", slow)
    assert not settle(theirs, trusting.deps)
    with trusting.deps.store.open(SMALL.digest) as stream:
        assert stream.read() == RIGHT
    assert trusting.sweep().hashed == (another_has == "copied it")
    with trusting.deps.store.open(SMALL.digest) as stream:
        assert stream.read() == RIGHT


def test_a_copy_that_nobody_has_hashed_yet_is_hashed_before_another_is_made(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(arrivals, "_settle_copy", lambda *given, **named: False)
        assert not settle(arrive(trusting, RIGHT), trusting.deps)
    swap_while_copied(trusting, monkeypatch)
    assert settle(arrive(trusting, RIGHT, namespace=OTHER), trusting.deps)
    with trusting.deps.store.open(SMALL.digest) as stream:
        assert stream.read() == RIGHT


def test_a_slow_sweeper_removes_nothing_that_came_since(trusting: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = arrive(trusting, WRONG)
    hash_ = trusting.deps.hashing.hash

    def slow(*given: Any, **named: Any) -> Any:
        hashed = hash_(*given, **named)
        arrive(trusting, RIGHT)
        return hashed

    with monkeypatch.context() as patched:
        patched.setattr(trusting.deps.hashing, "hash", slow)
        assert not settle(wrong, trusting.deps)
    assert settle(wrong, trusting.deps)


def test_what_arrived_and_became_no_blob_is_removed_after_the_grace_period(service: Service, tmp_path: Path) -> None:
    put(service, tmp_path / "file", namespace=OTHER)
    put(service, tmp_path / "file")
    assert service.sweep().hashed == 1
    store = store_of(service)
    left = [arrival.namespace for arrival in store.arrivals()]
    assert len(left) == 1, "the other one's bytes became the blob"
    assert retain(service.deps).given_up == 0
    service.clock.advance(1.1 * DAY)
    assert plan(service.deps).given_up == 1
    assert [arrival.namespace for arrival in store.arrivals()] == left
    assert retain(service.deps).given_up == 1
    assert list(store.arrivals()) == []


def test_a_large_blob_is_hashed_over_passes_and_leases_run_out_between_them(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = a_spec()
    for blob in spec.blobs:
        put(service, tmp_path / "small", BYTES[blob.digest], blob=blob)
    build = service.call("submit", SubmitRequest(spec=spec)).build
    service.claim("cpu-v3")
    service.clock.advance(DAY / 24)
    monkeypatch.setattr("registry.services.sweep.SLICE_SECONDS", -1.0)
    store_of(service)._copies.bound = True  # else the copy is read as well
    put(service, tmp_path / "file")
    swept = [service.sweep()]
    assert (swept[0].hashed, swept[0].expired) == (0, (build.id,))
    while not swept[-1].hashed:
        assert len(swept) < 30
        swept.append(service.sweep())
    assert 10 < len(swept) < 15, "one chunk a pass, each read once"
    assert service.call("submit", SubmitRequest(spec=large_spec())).created


def test_a_pass_of_hashing_ends_in_time_for_the_leases(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, tmp_path / "file")
    monkeypatch.setattr("registry.services.sweep.HASH_SECONDS", -1.0)
    assert service.sweep().hashed == 0
    monkeypatch.setattr("registry.services.sweep.HASH_SECONDS", 60.0)
    assert service.sweep().hashed == 1


def test_small_blobs_beside_it_need_no_hashing_where_the_store_compares(service: Service, tmp_path: Path) -> None:
    small = b"x" * 100
    blob = Blob(digest=Digest.of(small), size_bytes=100)
    path = tmp_path / "small"
    path.write_bytes(small)
    [link] = service.call("open_uploads", OpenUploadsRequest(namespace=Namespace("default"), blobs=(blob,))).links
    put_blob(HttpTransport(), link, path, timeout_seconds=20, retry=ONCE)
    assert link.parts == ()
    assert service.sweep().hashed == 0
