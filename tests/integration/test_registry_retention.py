"""Retention: what pins a bundle, what expires, and bytes that are never deleted while somebody may need them."""

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from aot.errors import AotError, BlobMissing, BlobPending, BundleNotFound, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.spec import Blob, File
from aot.schema.state import BlobState
from aot.schema.wire.blobs import DownloadLinksRequest, Link, OpenUploadsRequest
from aot.schema.wire.builds import CancelRequest, Claim, SubmitRequest
from aot.schema.wire.bundles import FindRequest, TagRequest, WithdrawRequest
from aot.schema.wire.workers import Outcome, Receipt
from registry.db.models import BlobRow
from registry.services import holding, records, retention
from registry.services.retention import Retained, plan, retain
from tests.builders import a_file, a_manifest, a_profile, a_source, a_spec, an_artifact, an_environment
from tests.integration.test_registry_process import run
from tests.service import Service, a_service

DAY = 86400.0


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def a_bundle(service: Service, name: str = "mini", *, tags: tuple[str, ...] = (), content: bytes = b"") -> Digest:
    """Publish a bundle with one file of its own."""
    claim = a_claim(service, name, tags=tags)
    return service.publish(claim, a_built(claim, content or name.encode())).bundle


def a_claim(service: Service, name: str, *, tags: tuple[str, ...] = ()) -> Claim:
    spec = a_spec(name, source=a_source(f"source of {name}".encode()))
    build = service.submit(spec, tags=tuple(Tag(tag) for tag in tags)).build
    return service.claim("cpu-v3", build=build.id)


def a_built(claim: Claim, content: bytes) -> Manifest:
    own = a_file("lib/model.so", content)
    return a_manifest(claim.spec, profile=claim.profile, artifacts=(an_artifact(files=(own,)),))


def file_of(service: Service, bundle: Digest) -> Digest:
    return service.call("get_download_links", DownloadLinksRequest(digests=()), digest=bundle).links[0].digest


def later(service: Service, *, days: float) -> Retained:
    service.clock.advance(days * DAY)
    return retain(service.deps)


def is_known(service: Service, bundle: Digest) -> bool:
    try:
        service.call("get_bundle", digest=bundle)
    except BundleNotFound:
        return False
    return True


def state_of(service: Service, digest: Digest) -> BlobState | None:
    with service.deps.sessions.reading() as session:
        row = session.get(BlobRow, digest)
        return row.state if row else None


def test_an_untagged_bundle_goes_and_a_tagged_one_stays(service: Service) -> None:
    loose, pinned = a_bundle(service, "loose"), a_bundle(service, "pinned", tags=("prod",))
    assert later(service, days=89).bundles == ()
    assert later(service, days=2).bundles == (loose,)
    assert (is_known(service, loose), is_known(service, pinned)) == (False, True)


def test_a_tag_that_moves_away_starts_the_clock_and_does_not_stop_it(service: Service) -> None:
    first = a_bundle(service, "mini", tags=("prod",))
    service.clock.advance(200 * DAY)
    service.register(a_profile())
    second = a_bundle(service, "mini2", content=b"mini2")
    service.call("tag", TagRequest(bundle=first), namespace="default", name="mini", tag="prod")
    own = a_file("lib/model.so", b"another")
    claim = service.claim("cpu-v3", build=service.submit(a_spec("mini", source=a_source(b"changed"))).build.id)
    changed = a_manifest(claim.spec, profile=claim.profile, artifacts=(an_artifact(files=(own,)),))
    third = service.publish(claim, changed).bundle
    service.call("tag", TagRequest(bundle=third, expected=first), namespace="default", name="mini", tag="prod")
    assert later(service, days=89).bundles == ()
    assert set(later(service, days=2).bundles) == {first, second}
    assert is_known(service, third)


@pytest.mark.parametrize("use", ["resolve", "links", "find", "receipt"])
def test_a_use_by_digest_pins_as_a_lock_does(service: Service, use: str) -> None:
    bundle = a_bundle(service)
    service.clock.advance(80 * DAY)
    match use:
        case "resolve":
            service.call("resolve", namespace="default", name="mini", target=bundle)
        case "links":
            service.call("get_download_links", DownloadLinksRequest(digests=()), digest=bundle)
        case "find":
            spec = a_spec("mini", source=a_source(b"source of mini"))
            service.call("find", FindRequest(specs=(spec,)))
        case "receipt":
            service.call("send_receipt", a_receipt(bundle))
    assert later(service, days=80).bundles == ()
    assert later(service, days=11).bundles == (bundle,)


def a_receipt(bundle: Digest) -> Receipt:
    return Receipt(
        reference=Reference("default/mini:prod"),
        bundle=bundle,
        outcome=Outcome.COMPILED,
        environment=an_environment(),
        load_seconds=0.1,
    )


def test_withdrawn_bundles_go_sooner_and_only_after_their_time(service: Service) -> None:
    bundle = a_bundle(service)
    service.clock.advance(60 * DAY)
    service.call("withdraw", WithdrawRequest(reason="bad"), digest=bundle)
    assert later(service, days=29).bundles == ()
    assert later(service, days=2).bundles == (bundle,)


def test_bytes_are_condemned_then_deleted_after_the_grace_period(service: Service) -> None:
    bundle = a_bundle(service, "loose")
    file = file_of(service, bundle)
    a_bundle(service, "pinned", tags=("prod",))
    first = later(service, days=91)
    assert file in first.condemned and first.deleted == ()
    assert first.condemned_bytes > 0
    assert service.deps.store.stat(file) is not None
    assert later(service, days=0.9).deleted == ()
    second = later(service, days=0.2)
    assert file in second.deleted and second.freed_bytes == first.condemned_bytes
    assert service.deps.store.stat(file) is None and state_of(service, file) is None


def test_what_was_condemned_while_the_clock_was_ahead_waits_its_time_from_now_on(service: Service) -> None:
    """Not until that day comes; and not less, since links may have been handed out until a moment ago."""
    bundle = a_bundle(service, "loose")
    file = file_of(service, bundle)
    a_bundle(service, "pinned", tags=("prod",))
    assert file in later(service, days=91).condemned
    assert later(service, days=-60 / DAY).deleted == (), "as two clocks may differ"
    assert condemned_at(service, file) == service.clock() + timedelta(seconds=60)
    assert later(service, days=-91).deleted == () and condemned_at(service, file) == service.clock()
    assert later(service, days=0.9).deleted == ()
    assert file in later(service, days=0.2).deleted and state_of(service, file) is None


def condemned_at(service: Service, digest: Digest) -> datetime | None:
    with service.deps.sessions.reading() as session:
        return session.get(BlobRow, digest).condemned_at


def test_the_grace_period_outlives_links_however_long_these_live(tmp_path) -> None:
    with a_service(tmp_path, AOT_LINK_SECONDS=str(3 * DAY), AOT_GRACE_SECONDS="1") as service:
        service.register(a_profile())
        file = file_of(service, a_bundle(service))
        assert file in later(service, days=91).condemned
        assert later(service, days=3).deleted == ()
        assert file in later(service, days=0.1).deleted


@pytest.mark.parametrize(("attempt_seconds", "lives"), [(7, 7), (2, 5)])
def test_the_links_of_a_claim_end_with_its_attempt_however_long_its_bytes_take(
    tmp_path, monkeypatch: pytest.MonkeyPatch, attempt_seconds: int, lives: int
) -> None:
    """Or where that is shorter, with the life of every link."""
    monkeypatch.setattr("registry.services.blobs.SLOWEST_BYTES_PER_SECOND", 1)
    with a_service(tmp_path, AOT_LINK_SECONDS="5", AOT_ATTEMPT_SECONDS=str(attempt_seconds)) as service:
        service.register(a_profile())
        asked: list[timedelta] = []
        link = service.deps.store.download_link

        def noted(blob: Blob, *, expires_in: timedelta) -> Link:
            asked.append(expires_in)
            return link(blob, expires_in=expires_in)

        monkeypatch.setattr(service.deps.store, "download_link", noted)
        assert sum(blob.size_bytes for blob in a_claim(service, "mini").spec.blobs) > 2
    assert asked == [timedelta(seconds=lives)]


def test_shared_bytes_stay_while_one_bundle_needs_them(service: Service) -> None:
    loose = a_bundle(service, "loose", content=b"shared")
    a_bundle(service, "pinned", tags=("prod",), content=b"shared")
    file = file_of(service, loose)
    assert later(service, days=91).bundles == (loose,)
    later(service, days=2)
    later(service, days=2)
    assert service.deps.store.stat(file) is not None and state_of(service, file) is BlobState.STORED


def test_the_source_of_a_waiting_build_stays(service: Service) -> None:
    spec = a_spec(source=a_source(b"waiting long"))
    service.submit(spec)
    for _ in range(3):
        assert later(service, days=30) == Retained()
    service.register(a_profile())
    claim = service.claim("cpu-v3")
    assert service.http.get(claim.links[0].url).content == b"waiting long"


def test_sources_of_waiting_builds_keep_no_pass_from_what_comes_after_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay candidates: passes that began with them each time would never end."""
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    specs = [a_spec(f"m{number}", source=a_source(b"%d" % number)) for number in range(5)]
    *_, last = sorted(specs, key=lambda spec: spec.blobs[0].digest)
    for spec in specs:
        service.submit(spec)
    for build in service.call("list_builds").builds:
        if build.name == last.name:
            service.call("cancel", CancelRequest(), build=build.id)
    service.clock.advance(2 * DAY)
    passes = [retain(service.deps, seconds=0) for _ in range(12)]
    assert {digest for one in passes for digest in one.condemned} == {last.blobs[0].digest}
    assert False in [one.unfinished for one in passes]


def test_an_upload_that_never_arrived_is_forgotten(service: Service) -> None:
    blob = a_file("x", b"never put")
    request = OpenUploadsRequest(namespace=Namespace("default"), blobs=(as_blob(blob),))
    service.call("open_uploads", request)
    assert later(service, days=0.5) == Retained()
    done = later(service, days=0.6)
    assert done.condemned == (blob.digest,) and done.condemned_bytes == 0
    assert later(service, days=1.1).deleted == (blob.digest,)


def as_blob(file: File) -> Blob:
    return Blob(digest=file.digest, size_bytes=file.size_bytes)


@pytest.mark.parametrize("how", ["open_uploads", "publish"])
def test_condemned_bytes_live_again_when_they_are_wanted(service: Service, how: str) -> None:
    file = file_of(service, a_bundle(service, "loose", content=b"wanted again"))
    assert file in later(service, days=91).condemned
    service.register(a_profile())
    if how == "open_uploads":
        assert service.upload([as_blob(a_file("x", b"wanted again"))]) == []  # there already
        assert state_of(service, file) is BlobState.STORED
    else:
        a_bundle(service, "again", tags=("prod",), content=b"wanted again")
    later(service, days=1.0)
    assert service.deps.store.stat(file) is not None
    assert state_of(service, file) is BlobState.STORED


def test_what_is_being_deleted_cannot_be_counted_on(service: Service, monkeypatch) -> None:
    file = file_of(service, a_bundle(service, "loose", content=b"going"))
    later(service, days=91)
    monkeypatch.setattr(service.deps.store, "delete", lambda digest, *, version: fail())
    with pytest.raises(AotError):
        later(service, days=1.1)
    assert state_of(service, file) is BlobState.DELETING
    monkeypatch.undo()
    with pytest.raises(BlobPending):
        service.upload([as_blob(a_file("x", b"going"))])
    assert later(service, days=0.001).deleted == ()  # whoever deletes may still be at it
    assert file in later(service, days=0.1).deleted
    assert service.upload([as_blob(a_file("x", b"going"))]) == [file]


def fail() -> None:
    raise StorageUnavailable("the store is away", hint="wait")


def test_a_dry_run_says_what_would_go_and_changes_nothing(service: Service) -> None:
    bundle = a_bundle(service)
    file = file_of(service, bundle)
    service.deps.uses.flush(service.deps.sessions)
    service.clock.advance(91 * DAY)
    planned = plan(service.deps)
    assert planned.bundles == (bundle,) and file in planned.condemned and planned.deleted == ()
    assert is_known(service, bundle) and state_of(service, file) is BlobState.STORED
    assert retain(service.deps) == planned
    service.clock.advance(2 * DAY)
    planned = plan(service.deps)
    assert planned == retain(service.deps) and planned.freed_bytes > 0


def test_a_dry_run_only_reads_and_waits_for_no_writer(service: Service) -> None:
    bundle = a_bundle(service)
    shared = a_bundle(service, "shared", tags=("prod",), content=b"mini")
    service.deps.uses.flush(service.deps.sessions)
    service.clock.advance(91 * DAY)
    statements: list[str] = []
    event.listen(service.deps.sessions.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    with service.deps.sessions.transaction() as session:  # SQLite has one writer: who waits for it waits for ever
        session.execute(text("UPDATE tags SET tag = tag"))
        statements.clear()
        planned = plan(service.deps)
        read = list(statements)
    assert planned.bundles == (bundle,)
    assert file_of(service, shared) not in planned.condemned
    assert read and all(one.startswith(("SELECT", "BEGIN")) and "FOR UPDATE" not in one for one in read), read
    assert "BEGIN IMMEDIATE" not in read


def test_a_publish_beside_retention_keeps_its_bytes(service: Service, monkeypatch) -> None:
    """Four publishers and two sweepers, while the bytes that all of them share are condemned again and again."""
    monkeypatch.setattr(holding, "STUCK", holding.STUCK * 0)
    shared = b"shared by all"
    file = file_of(service, a_bundle(service, "first", content=shared))
    later(service, days=91)
    service.clock.advance(2 * DAY)
    service.register(a_profile())
    ended = threading.Event()

    def sweeping() -> None:
        while not ended.is_set():
            retain(service.deps)

    # Before the race: a build that is asked for twice is another publisher's to claim.
    claims = [a_claim(service, f"m{number}", tags=("prod",)) for number in range(4)]

    def publishing(claim: Claim) -> Digest:
        for _ in range(50):
            try:
                return service.publish(claim, a_built(claim, shared)).bundle
            except AotError as error:
                # The last where PostgreSQL ends a deadlock: clients send such a request again.
                assert error.code in ("blob-pending", "blob-missing", "storage-unavailable"), error
        raise AssertionError("never published")

    with ThreadPoolExecutor(6) as pool:
        sweepers = [pool.submit(sweeping) for _ in range(2)]
        try:
            published = list(pool.map(publishing, claims))
        finally:
            ended.set()
        for sweeper in sweepers:
            sweeper.result()
    for bundle in published:
        links = service.call("get_download_links", DownloadLinksRequest(digests=()), digest=bundle).links
        assert [service.http.get(link.url).content for link in links] == [shared]
    assert state_of(service, file) is BlobState.STORED


def test_of_a_tag_and_retention_that_meet_one_wins(service: Service) -> None:
    bundles = [a_bundle(service, f"m{number}") for number in range(8)]
    service.clock.advance(91 * DAY)

    def tagging(number: int) -> bool:
        request = TagRequest(bundle=bundles[number])
        try:
            service.call("tag", request, namespace="default", name=Name(f"m{number}"), tag="prod")
        except BundleNotFound:
            return False
        return True

    with ThreadPoolExecutor(9) as pool:
        going = pool.submit(retain, service.deps)
        tagged = list(pool.map(tagging, range(8)))
        gone = going.result().bundles
    assert [is_known(service, bundle) for bundle in bundles] == tagged
    assert set(gone) == {bundle for bundle, kept in zip(bundles, tagged, strict=True) if not kept}


def test_a_sweeper_s_pass_goes_on_to_what_else_expires_and_the_next_pass_with_the_rest(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the way of nobody's lease however much has expired at once."""
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    monkeypatch.setattr(records, "MOST_A_PASS", 1)
    monkeypatch.setattr(retention, "DELETE_AT_ONCE", 1)
    files = {file_of(service, a_bundle(service, name)) for name in ("one", "two", "three")}
    service.clock.advance(91 * DAY)
    passes = [retain(service.deps, seconds=0)]
    recorded = list(service.deps.records.list(records.BUNDLES))
    assert (len(passes[0].bundles), len(recorded), len(passes[0].condemned)) == (1, 2, 1)
    while passes[-1].unfinished:
        passes.append(retain(service.deps, seconds=0))
    assert [len(one.bundles) for one in passes[:4]] == [1, 1, 1, 0]
    assert not list(service.deps.records.list(records.BUNDLES))
    service.clock.advance(30 * DAY)
    gone = [retain(service.deps, seconds=0) for _ in range(9)]
    assert [len(one.deleted) for one in gone[:3]] == [1, 1, 1] and not gone[-1].unfinished
    assert files <= {digest for one in gone for digest in one.deleted}


def test_a_record_that_cannot_be_removed_keeps_nothing_else_from_expiring(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = sorted(a_bundle(service, name) for name in ("one", "two"))
    file = file_of(service, other)
    service.clock.advance(91 * DAY)
    kind, name = type(service.deps.records), records.bundle_name(stuck)
    delete = kind.delete

    def refuse(self: Any, one: str) -> None:
        if one == name:
            raise StorageUnavailable("it is on hold")
        delete(self, one)

    monkeypatch.setattr(kind, "delete", refuse)
    with pytest.raises(StorageUnavailable, match="on hold"):
        retain(service.deps)
    assert service.deps.records.find(records.bundle_name(other)) is None
    assert state_of(service, file) is BlobState.CONDEMNED


def test_two_sweepers_delete_each_blob_once(service: Service) -> None:
    for number in range(20):
        a_bundle(service, f"m{number}")
    later(service, days=91)
    service.clock.advance(2 * DAY)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(retain, [service.deps] * 2))
    deleted = [digest for one in done for digest in one.deleted]
    assert len(deleted) == len(set(deleted)) == 40  # a file and a source each


def test_the_command_prints_what_it_did(tmp_path: Path) -> None:
    assert run(tmp_path, "migrate").returncode == 0
    answer: subprocess.CompletedProcess[str] = run(tmp_path, "retain", "--dry-run")
    assert answer.returncode == 0, answer.stderr
    assert '"freed_bytes": 0' in answer.stdout
    assert run(tmp_path, "retain").stdout == answer.stdout


def test_a_submit_of_expired_bytes_asks_for_them_again(service: Service) -> None:
    spec = a_spec(source=a_source(b"once"))
    service.submit(spec)
    service.call("cancel", CancelRequest(), build=service.call("list_builds").builds[0].id)
    later(service, days=2)
    later(service, days=2)
    service.register(a_profile())
    with pytest.raises(BlobMissing):
        service.call("submit", SubmitRequest(spec=spec))
    service.submit(spec)
