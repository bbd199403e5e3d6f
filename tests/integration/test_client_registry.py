"""The client against the real application: the flows of submit, work and pull, and every method once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.cache import LocalCache
from aot.cli.exits import Exit, exit_code_of
from aot.client import RegistryClient
from aot.errors import (
    BlobMissing,
    BuildNotFound,
    BundleWithdrawn,
    LeaseLost,
    RegistryError,
    TagMoved,
    TagNotFound,
    Unauthenticated,
)
from aot.facts.kernels import read_kernels
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import decode_manifest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.report import Phase
from aot.schema.spec import Blob
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.builds import Claim
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Outcome, Receipt, Scope
from tests.builders import BYTES, a_file, a_manifest, a_profile, a_spec, an_artifact, an_environment, manifest_text
from tests.kernels import GOLDEN
from tests.service import Service, a_service
from tests.transport import AppTransport, client_of

WORKER = Name("worker-1")
REFERENCE = Reference.parse("mini:v1")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        yield service


@pytest.fixture
def client(service: Service) -> RegistryClient:
    client = client_of(service)
    client.register_worker(WORKER, profiles=(a_profile(),))
    return client


def upload(client: RegistryClient, blobs: tuple[Blob, ...], directory: Path) -> None:
    files = {blob.digest: directory / blob.digest.short for blob in blobs}
    for digest, path in files.items():
        path.write_bytes(BYTES[digest])
    client.upload_blobs(client.open_uploads(Namespace("default"), blobs), files)


def claimed(client: RegistryClient, directory: Path, **fields: object) -> Claim:
    upload(client, a_spec(**fields).blobs, directory)  # type: ignore[arg-type]
    build = client.submit(a_spec(**fields), tags=(Tag("v1"),)).build  # type: ignore[arg-type]
    claim = client.claim(WORKER, profiles=(a_profile().name,), build=build.id).claim
    assert claim is not None
    return claim


def published(client: RegistryClient, directory: Path, **fields: object) -> Digest:
    claim = claimed(client, directory)
    worker = client.with_token(claim.token)
    manifest = a_manifest(claim.spec, profile=claim.profile, **fields)
    upload(worker, manifest.blobs, directory)
    return worker.publish(claim.build, manifest_text(manifest)[0]).bundle


def test_submit_work_and_pull(client: RegistryClient, tmp_path: Path) -> None:
    digest = published(client, tmp_path)
    transport = client.transport
    assert isinstance(transport, AppTransport)
    transport.sent.clear()
    cache = LocalCache(tmp_path / "cache")
    (signed,) = client.resolve(REFERENCE)
    manifest = decode_manifest(signed.manifest.encode())
    links = client.get_download_links(signed.digest, [blob.digest for blob in manifest.blobs])
    paths = client.fetch_blobs(manifest.blobs, links, cache)
    assert signed.digest == digest
    assert [path.read_bytes() for path in paths] == [BYTES[blob.digest] for blob in manifest.blobs]
    assert [path for _, path in transport.sent if path.startswith("/v1/")] == [
        "/v1/models/default/mini/v1",
        f"/v1/bundles/{digest}/links",
    ]


def test_a_cold_node_pulls_with_one_request(client: RegistryClient, tmp_path: Path) -> None:
    digest = published(client, tmp_path)
    transport = client.transport
    assert isinstance(transport, AppTransport)
    transport.sent.clear()
    reply = client.resolve_with_links(REFERENCE)
    manifest = decode_manifest(reply.bundles[0].manifest.encode())
    paths = client.fetch_blobs(manifest.blobs, reply.links, LocalCache(tmp_path / "cache"))
    assert [path.read_bytes() for path in paths] == [BYTES[blob.digest] for blob in manifest.blobs]
    assert ([one.digest for one in reply.bundles], client.resolve(REFERENCE)) == ([digest], reply.bundles)
    assert [path for _, path in transport.sent if path.startswith("/v1/")] == ["/v1/models/default/mini/v1"] * 2


def test_what_was_uploaded_is_not_asked_for_again(client: RegistryClient, tmp_path: Path) -> None:
    published(client, tmp_path)
    assert client.open_uploads(Namespace("default"), (*a_spec().blobs, *a_manifest().blobs)) == ()


def test_a_lost_answer_to_publish_is_asked_for_again(client: RegistryClient, tmp_path: Path) -> None:
    claim = claimed(client, tmp_path)
    worker = client.with_token(claim.token)
    manifest = a_manifest(claim.spec, profile=claim.profile)
    upload(worker, manifest.blobs, tmp_path)
    text, digest = manifest_text(manifest)
    assert worker.publish(claim.build, text) == worker.publish(claim.build, text)
    assert client.get_build(claim.build).bundle == digest


def test_refusals_arrive_as_their_classes(client: RegistryClient, service: Service, tmp_path: Path) -> None:
    with pytest.raises(BlobMissing):
        client.submit(a_spec())
    with pytest.raises(BuildNotFound):
        client.get_build("none")
    with pytest.raises(TagNotFound):
        client.resolve(REFERENCE)
    with pytest.raises(Unauthenticated):
        client_of(service, token="guessed").get_health()


def test_a_worker_whose_lease_ran_out_is_told_to_stop(client: RegistryClient, service: Service, tmp_path: Path) -> None:
    claim = claimed(client, tmp_path)
    worker = client.with_token(claim.token)
    assert worker.renew(claim.build).stop is None
    service.clock.advance(claim.lease_seconds + 1)
    service.sweep()
    with pytest.raises(LeaseLost):
        worker.report_progress(claim.build, phase=Phase.COMPILING, step="region 1 of 2", lines=("compiling",))


def test_a_cancelled_build_stops_its_worker(client: RegistryClient, tmp_path: Path) -> None:
    claim = claimed(client, tmp_path)
    worker = client.with_token(claim.token)
    worker.report_progress(claim.build, phase=Phase.COMPILING, step="region 1 of 2", lines=("one", "two"))
    assert [line.text for line in client.get_build_log(claim.build).lines] == ["one", "two"]
    assert client.cancel(claim.build, reason="not needed").state is BuildState.CANCELLED
    assert worker.renew(claim.build).stop


def test_a_failed_and_a_released_build(client: RegistryClient, tmp_path: Path) -> None:
    claim = claimed(client, tmp_path)
    assert client.with_token(claim.token).release(claim.build, reason="shutting down").state is BuildState.QUEUED
    # Not to whoever gave it back: that one could not build it a moment ago.
    assert client.claim(WORKER, profiles=(a_profile().name,)).claim is None
    client.register_worker(Name("worker-2"), profiles=(a_profile(),))
    again = client.claim(Name("worker-2"), profiles=(a_profile().name,)).claim
    assert again is not None and again.attempt == 2
    error = ErrorBody(code="backend-failed", message="the compiler crashed")
    assert client.with_token(again.token).fail(again.build, error=error).error == error
    assert [build.state for build in client.list_builds(state=BuildState.FAILED, limit=5).builds] == [BuildState.FAILED]
    retried = client.retry(again.build, reason="the compiler is mended")
    assert retried.created and retried.build.state is BuildState.QUEUED


def test_tags_move_and_bundles_are_withdrawn(client: RegistryClient, tmp_path: Path) -> None:
    digest = published(client, tmp_path)
    stable = Reference.parse("mini:stable")
    assert client.tag(stable, digest).reference == stable
    with pytest.raises(TagMoved):
        client.tag(stable, digest, expected=Digest.of(b"something else"))
    assert [view.digest for view in client.search(text="min", tag=Tag("stable")).bundles] == [digest]
    assert client.withdraw(digest, reason="wrong on batch 1").state is BundleState.WITHDRAWN
    assert client.get_bundle(digest).withdrawn_reason == "wrong on batch 1"
    with pytest.raises(BundleWithdrawn) as raised:
        client.resolve(REFERENCE.pinned_to(digest))
    assert raised.value.details["reason"] == "wrong on batch 1"


def test_a_tag_is_removed(client: RegistryClient, tmp_path: Path) -> None:
    digest = published(client, tmp_path)
    with pytest.raises(TagMoved):
        client.untag(REFERENCE, expected=Digest.of(b"something else"))
    [removed] = client.untag(REFERENCE, expected=digest)
    assert (removed.reference, removed.bundle, removed.profile) == (REFERENCE, digest, a_profile().name)
    with pytest.raises(TagNotFound):
        client.untag(REFERENCE)
    assert client.get_bundle(digest).tags == ()


@pytest.mark.parametrize("change", [{"method": "PATCH"}, {"path": "/v1/untag/{namespace}/{name}/{tag}"}])
def test_a_registry_without_an_endpoint_is_called_older(
    client: RegistryClient, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """As the application itself refuses a method and a path that it does not have."""
    row = ENDPOINTS["untag"]._replace(**change)
    monkeypatch.setitem(ENDPOINTS, "untag", row)
    with pytest.raises(RegistryError, match=f"does not know {row.method} {re.escape(row.path)}") as raised:
        client.untag(REFERENCE)
    assert "older version" in raised.value.hint and exit_code_of(raised.value) is Exit.REFUSED
    monkeypatch.undo()
    with pytest.raises(TagNotFound):  # which is its own answer
        client.untag(REFERENCE)


def test_kernels_are_listed(client: RegistryClient, tmp_path: Path) -> None:
    code = GOLDEN / "add-sm_80.cubin"
    kernels = read_kernels([("cubin/add.cubin", code)], a_profile().capability)
    files = (a_file(), a_file("cubin/add.cubin", code.read_bytes()))
    digest = published(client, tmp_path, artifacts=(an_artifact(files=files, binaries=kernels),))
    assert [view.bundle for view in client.list_kernels(text="add", limit=5).kernels] == [digest]
    assert client.list_kernels(capability="cuda:sm_90").kernels == ()


def test_find_and_push(client: RegistryClient, tmp_path: Path) -> None:
    (before,) = client.find([a_spec()])
    assert before.bundle is None
    manifest = a_manifest()
    upload(client, (*manifest.spec.blobs, *manifest.blobs), tmp_path)
    reply = client.push(manifest_text(manifest)[0], tags=(Tag("v1"),))
    assert reply.state is BundleState.PENDING
    claim = client.claim(WORKER, profiles=(a_profile().name,)).claim
    assert claim is not None and claim.requalify == reply.bundle


def test_the_fleet(client: RegistryClient) -> None:
    assert [view.profile for view in client.list_profiles().profiles] == [a_profile()]
    assert [(view.name, view.live) for view in client.list_workers().workers] == [(WORKER, True)]
    token = client.create_token("reader", scopes=(Scope.READ,), expires_in_seconds=60).token
    assert client.with_token(token).get_ready().ready
    assert client.get_health().status and client.get_keys().keys[0].startswith("ed25519:")
    client.send_receipt(Receipt(reference=REFERENCE, bundle=None, environment=an_environment(), outcome=Outcome.EAGER))


def test_every_endpoint_is_called_here_by_its_method() -> None:
    calls = Path(__file__).read_text()
    assert [name for name in ENDPOINTS if f".{name}(" not in calls] == []
