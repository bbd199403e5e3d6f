"""Submit, follow, fetch and publish as steps of the pipeline: what they hand on, and how they are stopped."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aot.client import RegistryClient
from aot.errors import BlobPending, BuildUnfinished, CompileStopped, NotARegistry, RegistryUnreachable
from aot.pipeline import Question, Staged, fetch_source, follow_build, pack_factory, publish_bundle, submit_spec
from aot.pipeline import submit as submit_module
from aot.schema.digest import Digest
from aot.schema.report import Phase
from aot.schema.state import BuildState
from aot.schema.wire.builds import Claim, ProgressRequest
from registry.db.models import MeasurementRow
from tests.builders import a_profile, a_spec
from tests.fake_backend import a_packed_source, stage
from tests.service import Service, a_service
from tests.transport import client_of

MEASURED = b'{"timings": {"mm": {"64x64": {"highest": {"aten": 0.5}}}}}'


def every_second_upload_is_opened(client: RegistryClient, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The registry holds a blob whenever it is asked for the first time; returns what came of each question."""
    monkeypatch.setattr("aot.pipeline.pending.PENDING_PAUSE", 0.01)
    open_uploads, asked = client.open_uploads, []

    def opened(*given: Any) -> Any:
        asked.append(len(asked) % 2 == 1)
        if not asked[-1]:
            raise BlobPending("being moved to its place")
        return open_uploads(*given)

    monkeypatch.setattr(client, "open_uploads", opened)
    return asked


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        service.register(a_profile())
        yield service


def a_claim(service: Service, tmp_path: Path) -> Claim:
    build = service.submit(a_spec(source=a_packed_source(tmp_path / "source"))).build.id
    return service.claim("cpu-v3", build=build)


def report(service: Service, claim: Claim, **fields: Any) -> None:
    service.call("report_progress", ProgressRequest(**fields), token=claim.token, build=claim.build)


def test_every_line_is_handed_on_once_from_the_first_to_the_last(service: Service, tmp_path: Path) -> None:
    claim = a_claim(service, tmp_path)
    lines = tuple(f"line {number}" for number in range(2500))  # more than one page of the log
    report(service, claim, phase=Phase.COMPILING, step="region 1 of 1", lines=lines[:2])
    seen: list[str] = []

    def finish() -> None:
        report(service, claim, lines=lines[2:])
        service.publish(claim)

    threading.Timer(0.3, finish).start()
    changes = []
    view = follow_build(
        client_of(service),
        claim.build,
        on_change=lambda view: changes.append((view.state, view.step)),
        on_line=lambda line: seen.append(line.text),
        timeout_seconds=20,
    )
    assert (view.state, tuple(seen)) == (BuildState.PUBLISHED, lines)
    assert changes == [(BuildState.RUNNING, "region 1 of 1"), (BuildState.PUBLISHED, "region 1 of 1")]


def test_a_registry_that_is_away_for_a_moment_does_not_end_the_following(service: Service, tmp_path: Path) -> None:
    claim = a_claim(service, tmp_path)
    client = client_of(service)

    def leave() -> None:
        client.transport.gone = True  # type: ignore[attr-defined]
        time.sleep(0.6)
        service.publish(claim)
        client.transport.gone = False  # type: ignore[attr-defined]

    threading.Timer(0.2, leave).start()
    assert follow_build(client, claim.build, timeout_seconds=20).state is BuildState.PUBLISHED


def test_a_registry_that_stays_away_ends_the_following(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_module, "AWAY_SECONDS", 0.5)
    client = client_of(service)
    client.transport.gone = True  # type: ignore[attr-defined]
    with pytest.raises(RegistryUnreachable):
        follow_build(client, "b1", timeout_seconds=20)


def test_a_proxys_page_does_not_end_the_following_of_a_build_that_was_seen(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = a_claim(service, tmp_path)
    client, pages = client_of(service), [NotARegistry("answered 404 with text/html")]
    get_build, seen = client.get_build, []

    def asked(build: str) -> Any:
        if seen and pages:
            service.publish(claim)
            raise pages.pop()
        seen.append(get_build(build).state)
        return get_build(build)

    monkeypatch.setattr(client, "get_build", asked)
    assert follow_build(client, claim.build, timeout_seconds=20).state is BuildState.PUBLISHED
    assert seen == [BuildState.RUNNING, BuildState.PUBLISHED] and not pages


def test_a_page_at_the_first_question_is_a_wrong_address(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(build: str) -> Any:
        raise NotARegistry("answered 404 with text/html")

    client = client_of(service)
    monkeypatch.setattr(client, "get_build", page)
    begun = time.monotonic()
    with pytest.raises(NotARegistry):
        follow_build(client, "b1", timeout_seconds=20)
    assert time.monotonic() - begun < 5


def test_following_ends_at_its_time_and_says_how_to_go_on(service: Service, tmp_path: Path) -> None:
    claim = a_claim(service, tmp_path)
    with pytest.raises(BuildUnfinished, match="still running after 0 s") as caught:
        follow_build(client_of(service), claim.build, timeout_seconds=0.3)
    assert f"aot wait {claim.build}" in caught.value.hint


def test_fetching_stops_in_the_middle_of_a_blob(service: Service, tmp_path: Path) -> None:
    claim = a_claim(service, tmp_path)
    into = tmp_path / "into"
    with pytest.raises(CompileStopped, match="cancelled"):
        fetch_source(client_of(service), claim.spec, claim.links, into=into, should_stop=lambda: "cancelled")
    assert [path for path in into.rglob("*") if path.is_file()] == [], "no half blob is left"


def test_publishing_stops_between_uploads(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.pipeline.pending.UPLOADS_AT_ONCE", 1)
    claim = a_claim(service, tmp_path)
    staged = stage(_question(claim), tmp_path / "work")
    client = client_of(service, token=claim.token)
    uploads = []
    upload = client.upload_blobs

    def uploaded(links: Any, paths: Any, **options: Any) -> None:
        uploads.append(len(links))
        upload(links, paths, **options)

    monkeypatch.setattr(client, "upload_blobs", uploaded)
    with pytest.raises(CompileStopped, match="enough"):
        publish_bundle(client, staged, build=claim.build, should_stop=lambda: "enough" if uploads else None)
    assert uploads == [1]
    publish_bundle(client, staged, build=claim.build)
    assert service.call("get_build", build=claim.build).state is BuildState.PUBLISHED


def test_waiting_for_the_registry_to_hash_stops_soon(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = a_claim(service, tmp_path)
    staged = stage(_question(claim), tmp_path / "work")
    client = client_of(service, token=claim.token)
    begun = time.monotonic()

    def pending(*args: Any, **kwargs: Any) -> None:
        raise BlobPending("not hashed yet")

    monkeypatch.setattr(client, "publish", pending)
    with pytest.raises(CompileStopped):
        publish_bundle(
            client,
            staged,
            build=claim.build,
            should_stop=lambda: "cancelled" if time.monotonic() - begun > 0.5 else None,
        )
    assert time.monotonic() - begun < 1.9


def test_an_upload_that_is_hashed_meanwhile_is_published(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.pipeline.pending.PENDING_PAUSE", 0.1)
    claim = a_claim(service, tmp_path)
    staged = stage(_question(claim), tmp_path / "work")
    client = client_of(service, token=claim.token)
    publish, refusals = client.publish, [BlobPending("not hashed yet")] * 3

    def published(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return publish(*args, **kwargs)

    monkeypatch.setattr(client, "publish", published)
    assert publish_bundle(client, staged, build=claim.build).bundle == staged.digest


def test_submitting_and_publishing_wait_for_a_blob_that_is_held(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter = client_of(service)
    asked = every_second_upload_is_opened(submitter, monkeypatch)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "model.py").write_text("def make(): ...\n")
    packed = pack_factory(tree, "model:make", into=tmp_path / "packed")
    spec = a_spec(source=packed.source)
    assert submit_spec(submitter, spec, packed).created and asked == [False, True]
    claim = service.claim("cpu-v3")
    client = client_of(service, token=claim.token)
    asked = every_second_upload_is_opened(client, monkeypatch)
    staged = stage(_question(claim), tmp_path / "work")
    assert publish_bundle(client, staged, build=claim.build).bundle == staged.digest
    assert asked == [False, True]


def test_what_tuning_has_measured_waits_for_a_blob_that_is_held(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = a_claim(service, tmp_path)
    client, staged = _with_measurements(service, claim, tmp_path)
    asked = every_second_upload_is_opened(client, monkeypatch)
    told: list[Any] = []
    publish_bundle(client, staged, build=claim.build, with_measurements=True, on_event=told.append)
    assert asked == [False, True] * 2 and told == [{"phase": "publishing"}]
    with service.deps.sessions.reading() as session:
        kept = session.scalars(select(MeasurementRow.blob)).all()
    assert kept == [Digest.of(MEASURED)]


def test_waiting_with_what_tuning_has_measured_stops_soon(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = a_claim(service, tmp_path)
    client, staged = _with_measurements(service, claim, tmp_path)
    open_uploads, held = client.open_uploads, list[bool]()

    def opened(namespace: Any, blobs: Any) -> Any:
        if Digest.of(MEASURED) in {blob.digest for blob in blobs}:
            held.append(True)
            raise BlobPending("being moved to its place")
        return open_uploads(namespace, blobs)

    monkeypatch.setattr(client, "open_uploads", opened)
    with pytest.raises(CompileStopped, match="cancelled"):
        publish_bundle(
            client,
            staged,
            build=claim.build,
            with_measurements=True,
            should_stop=lambda: "cancelled" if held else None,
        )
    assert held == [True]


def _with_measurements(service: Service, claim: Claim, tmp_path: Path) -> tuple[RegistryClient, Staged]:
    path = tmp_path / "tuning.json"
    path.write_bytes(MEASURED)
    return client_of(service, token=claim.token), replace(stage(_question(claim), tmp_path / "work"), measured=path)


def _question(claim: Claim) -> Question:
    return Question(spec=claim.spec, profile=claim.profile, build_key=claim.build_key, factors=claim.factors)
