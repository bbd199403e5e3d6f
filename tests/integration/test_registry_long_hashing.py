"""A blob that takes longer to hash than retention waits: while that gets forward, or somebody asks, it stays."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from aot.errors import BlobPending
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.state import BlobState
from aot.schema.wire.blobs import OpenUploadsRequest
from aot.schema.wire.builds import CancelRequest, RetryRequest, SubmitRequest
from aot.schema.wire.bundles import PublishRequest, PushRequest
from registry.db import blobs as rows
from registry.db import retention as retention_rows
from registry.services import blobs, hashing, sweep
from registry.services.arrivals import settle_arrival
from registry.services.retention import retain
from tests.builders import a_blob, a_manifest, a_profile, a_spec, manifest_text
from tests.integration import test_registry_parts, test_registry_settle
from tests.integration.test_registry_parts import BLOB, DEFAULT, OTHER, store_of
from tests.integration.test_registry_parts import put as put_parts
from tests.integration.test_registry_retention import DAY, state_of
from tests.integration.test_registry_settle import RIGHT, put
from tests.service import Service, a_service

trusting, in_parts = test_registry_settle.service, test_registry_parts.service  # fixtures
MOST_OF_IT = 0.9 * DAY
"""Of the time after which an upload is given up that nobody has asked for since."""


def go_on(service: Service) -> bool:
    """A slice, as the sweeper takes it: it ends after the first chunk."""
    deps = service.deps
    return blobs.settle_upload(
        a_blob(RIGHT), store=deps.store, sessions=deps.sessions, clock=deps.clock, hashing=deps.hashing, seconds=-1
    )


def opened_at(service: Service, digest: Digest, namespace: Namespace = DEFAULT) -> datetime:
    with service.deps.sessions.reading() as session:
        view, _ = rows.views_of((digest,), namespace=namespace, session=session)[digest]
    return view.opened_at


def waits_for_the_sweeper(service: Service) -> bool:
    with service.deps.sessions.reading() as session:
        since = service.clock() - sweep.HASH_UPLOADS_FOR
        return bool(rows.pending_blobs(session, opened_since=since, start=a_blob(RIGHT).digest, limit=1))


def test_a_blob_that_is_hashed_for_days_is_stored_in_the_end(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 4)
    put(trusting, RIGHT)
    for _ in range(len(RIGHT) // 4):
        assert not go_on(trusting)
        trusting.clock.advance(MOST_OF_IT)
        assert retain(trusting.deps).condemned == () and waits_for_the_sweeper(trusting)
    assert go_on(trusting)
    assert state_of(trusting, a_blob(RIGHT).digest) is BlobState.STORED


def test_one_that_gets_no_further_has_its_time_as_every_upload(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 4)
    put(trusting, RIGHT)
    assert not go_on(trusting)
    asked = opened_at(trusting, a_blob(RIGHT).digest)
    trusting.clock.advance(MOST_OF_IT)
    monkeypatch.setattr(hashing, "SLOWEST_BYTES_PER_SECOND", 1 << 60)
    monkeypatch.setattr(hashing, "FORGOTTEN_SECONDS", 0.0)
    monkeypatch.setattr(hashing.Hashing, "_forget_old", lambda self: None)
    assert not go_on(trusting)
    assert opened_at(trusting, a_blob(RIGHT).digest) == asked
    trusting.clock.advance(MOST_OF_IT)
    assert retain(trusting.deps).condemned == (a_blob(RIGHT).digest,)


def test_one_that_is_begun_again_and_again_is_given_up_in_the_end(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a sweeper that ends before it has read everything: what it knows ends with it."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 4)
    put(trusting, RIGHT)
    days = 0
    while not (condemned := retain(trusting.deps).condemned) and days < 40:
        trusting.deps.hashing.forget((a_blob(RIGHT).digest, "None"))
        assert not go_on(trusting)
        trusting.clock.advance(DAY / 2)
        days += 1 / 2
    assert condemned == (a_blob(RIGHT).digest,) and 30 < days < 33


def test_a_pass_writes_no_more_than_once_a_minute(trusting: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 2)
    put(trusting, RIGHT)
    digest, seen = a_blob(RIGHT).digest, []
    for seconds in (59, 2, 59):
        trusting.clock.advance(seconds)
        assert not go_on(trusting)
        seen.append((trusting.clock() - opened_at(trusting, digest)).total_seconds())
    assert seen == [59, 0, 59]


def test_of_more_than_a_pass_looks_at_one_that_was_begun_is_ended(
    trusting: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes begin anywhere; here never at what was begun."""
    other = a_blob(b"it never arrives")
    trusting.call("open_uploads", OpenUploadsRequest(namespace=DEFAULT, blobs=(other,)))
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 4)
    monkeypatch.setattr(sweep, "SLICE_SECONDS", -1)
    monkeypatch.setattr(sweep, "MOST_HASHED", 1)
    monkeypatch.setattr("registry.services.damage.anywhere", lambda: other.digest)
    put(trusting, RIGHT)
    assert not go_on(trusting)
    hashed = [sweep.hash_uploads(trusting.deps) for _ in range(2 * len(RIGHT) // 4)]
    assert sum(hashed) == 1 and state_of(trusting, a_blob(RIGHT).digest) is BlobState.STORED


def test_what_arrived_in_parts_stays_with_the_namespace_that_put_it(in_parts: Service, tmp_path: Path) -> None:
    service = in_parts
    for namespace in (DEFAULT, OTHER):
        put_parts(service, tmp_path / "file", namespace=namespace, parts=None if namespace == DEFAULT else 1)
    assert store_of(service).incoming_of(DEFAULT).complete(BLOB) == BLOB.size_bytes
    begun = service.clock()
    [arrival] = store_of(service).arrivals()
    for _ in range(3):
        assert not settle_arrival(arrival, service.deps, seconds=-1)
        service.clock.advance(MOST_OF_IT)
        retain(service.deps)
        assert list(store_of(service).arrivals()) == [arrival]
    assert opened_at(service, BLOB.digest, OTHER) == begun
    assert list(store_of(service).part_uploads()) == [], "what the other one has begun was given up"
    assert settle_arrival(arrival, service.deps, seconds=60)
    assert state_of(service, BLOB.digest) is BlobState.STORED


# Who asks


@pytest.mark.parametrize("condemned", [False, True], ids=["kept", "condemned"])
@pytest.mark.parametrize("endpoint", ["submit", "push", "retry", "publish"])
def test_who_is_told_to_come_again_has_asked(
    tmp_path: Path, endpoint: str, condemned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was condemned is kept again."""

    def refuse(*_: object) -> None:
        raise BlobPending("it is still being hashed")

    with a_service(tmp_path) as service:
        service.register(a_profile())
        spec = a_spec("one")
        manifest, build, token = a_manifest(spec), "", None
        if endpoint in ("publish", "retry"):
            build = service.submit(spec).build.id
        if endpoint == "publish":
            token = service.claim("cpu-v3", build=build).token
        if endpoint == "retry":
            service.call("cancel", CancelRequest(), build=build)
        asked = {"publish": manifest.blobs, "push": (*manifest.blobs, *spec.blobs)}.get(endpoint, spec.blobs)
        service.upload(asked)
        opened = service.clock()
        service.clock.advance(60)
        if condemned:
            with service.deps.sessions.transaction() as session:
                retention_rows.condemn([blob.digest for blob in asked], now=service.clock(), session=session)
        monkeypatch.setattr(blobs, "_require_hashed", refuse)
        text, _ = manifest_text(manifest)
        request = {
            "submit": SubmitRequest(spec=spec),
            "push": PushRequest(manifest=text),
            "retry": RetryRequest(),
            "publish": PublishRequest(manifest=text),
        }[endpoint]
        seen = []
        for _ in range(2):  # once a minute is enough
            with pytest.raises(BlobPending):
                service.call(endpoint, request, token=token, **({"build": build} if build else {}))
            seen.append({opened_at(service, blob.digest) for blob in asked})
            service.clock.advance(1)
        assert seen == [{opened}, {opened + timedelta(seconds=61)}]
        assert {state_of(service, blob.digest) for blob in asked} <= {BlobState.PENDING, BlobState.STORED}
