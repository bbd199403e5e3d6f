"""Push: a bundle built elsewhere stays pending until a worker has proven it again."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aot.errors import BlobMissing, BundleNotFound, Conflict, Forbidden, InvalidInput, ProfileNotFound
from aot.keys import fingerprint_of
from aot.schema.factor import Factor
from aot.schema.manifest import Manifest
from aot.schema.names import Name
from aot.schema.report import Provenance
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.builds import CancelRequest, FailRequest
from aot.schema.wire.bundles import PushRequest, TagRequest, WithdrawRequest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from tests.builders import (
    BYTES,
    a_file,
    a_manifest,
    a_profile,
    a_qualification,
    a_spec,
    a_speed,
    a_toolchain,
    altered,
    an_artifact,
    manifest_text,
)
from tests.service import Service, a_service

UNPROVEN = a_manifest(qualification=a_qualification(start=None, agreements=()))
SECONDS = itertools.count()
PROVEN = a_manifest(artifacts=(an_artifact(speeds=(a_speed(compiled_us=90.0),)),))


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def resolved(service: Service, target: str, token: str | None = None) -> list[str]:
    reply = service.call("resolve", namespace="default", name="mini", target=target, token=token)
    return [bundle.digest for bundle in reply.bundles]


def test_a_pushed_bundle_is_seen_by_nobody_but_the_worker_that_is_to_prove_it(service: Service) -> None:
    reply = service.push(UNPROVEN, tags=("v1",))
    assert reply.state is BundleState.PENDING
    [(_, ticket)] = service.queue.take()
    assert ticket.build == reply.build
    reader = service.token(Scope.READ)
    for call, body in (("get_download_links", DownloadLinksRequest()),):
        with pytest.raises(BundleNotFound):
            service.call(call, body, token=reader, digest=reply.bundle)
    with pytest.raises(BundleNotFound):
        resolved(service, reply.bundle, reader)
    with pytest.raises(Conflict, match="is pending"):
        service.call("tag", TagRequest(bundle=reply.bundle), namespace="default", name="mini", tag="v1")
    assert service.call("get_bundle", digest=reply.bundle).state is BundleState.PENDING

    claim = service.claim("cpu-v3", build=ticket.build)
    assert claim.requalify == reply.bundle
    place = {"namespace": "default", "name": "mini", "target": claim.requalify}
    [pending] = service.call("resolve", token=claim.token, **place).bundles
    assert (pending.manifest, pending.envelope.signatures) == (manifest_text(UNPROVEN)[0], ())
    links = service.call("get_download_links", DownloadLinksRequest(), token=claim.token, digest=claim.requalify).links
    assert [service.http.get(link.url).content for link in links] == [BYTES[a_file().digest]]


def test_its_proof_goes_live_in_its_place(service: Service) -> None:
    pushed = service.push(UNPROVEN, tags=("v1",))
    proven = service.publish(service.claim("cpu-v3"), PROVEN)
    assert proven.bundle != pushed.bundle
    assert resolved(service, "v1") == [proven.bundle]
    old = service.call("get_bundle", digest=pushed.bundle)
    assert (old.state, old.replacement) == (BundleState.REJECTED, proven.bundle)
    assert service.push(UNPROVEN) == proven, "what was pushed is there, in its proven form"
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=proven.bundle)
    with pytest.raises(Conflict, match="proven before"):
        service.push(UNPROVEN)


def test_pushed_twice_is_once(service: Service) -> None:
    first, again = service.push(UNPROVEN), service.push(UNPROVEN)
    assert first == again
    assert len(service.queue.take()) == 1


def built_again(manifest: Manifest, **deviations: Any) -> Manifest:
    """The same code, by another build of it."""
    at = f"2026-01-01T00:00:{next(SECONDS):02}Z"
    return altered(manifest, provenance=Provenance(builder="ci", built_at=at), **deviations)


def test_the_same_code_built_again_is_no_second_bundle(service: Service) -> None:
    first = service.push(built_again(UNPROVEN), tags=("v1",))
    assert service.push(built_again(UNPROVEN), tags=("v2",)) == first
    assert service.push(built_again(UNPROVEN, qualification=a_qualification())) == first, "a claimed proof is no code"
    assert len(service.call("search").bundles) == 1
    assert len(service.queue.take()) == 1
    proven = service.publish(service.claim("cpu-v3"), PROVEN)
    assert resolved(service, "v1") == resolved(service, "v2") == [proven.bundle]
    # Live: answered as well, and the tag moves at once.
    assert service.push(built_again(UNPROVEN), tags=("v3",)) == proven
    assert resolved(service, "v3") == [proven.bundle]
    assert service.queue.take() == []


@pytest.mark.parametrize(
    "other",
    [
        {"artifacts": (an_artifact(files=(a_file(content=b"other code"),)),)},
        {"artifacts": (an_artifact(region="block"),)},
        {"fingerprint": fingerprint_of([Factor.of("tree", "another")])},
    ],
    ids=["code", "region", "program"],
)
def test_other_code_of_the_same_key_is_another_bundle(service: Service, other: dict[str, Any]) -> None:
    first, second = service.push(UNPROVEN), service.push(altered(UNPROVEN, **other))
    assert first.bundle != second.bundle
    assert (first.state, second.state) == (BundleState.PENDING, BundleState.PENDING)


@pytest.mark.parametrize("end", ["rejected", "withdrawn"])
def test_the_same_code_is_taken_in_again_after_it_was_out(service: Service, end: str) -> None:
    first = service.push(UNPROVEN)
    if end == "rejected":
        service.call("cancel", CancelRequest(), build=first.build)
    else:
        live = service.publish(service.claim("cpu-v3"), PROVEN)
        service.call("withdraw", WithdrawRequest(reason="wrong"), digest=live.bundle)
    again = service.push(built_again(UNPROVEN))
    assert (again.bundle != first.bundle, again.state) == (True, BundleState.PENDING)


def test_of_eight_that_push_the_same_code_one_brings_it(service: Service) -> None:
    manifests = [built_again(UNPROVEN) for _ in range(8)]
    service.upload((*UNPROVEN.spec.blobs, *UNPROVEN.blobs))

    def push(manifest: Manifest) -> str:
        return service.call("push", PushRequest(manifest=manifest_text(manifest)[0])).bundle

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(push, manifests))) == 1
    assert len(service.call("search").bundles) == 1


def test_pushing_what_is_live_is_answered_with_it(service: Service) -> None:
    live = service.published(a_spec())
    assert service.push(a_manifest()).state is BundleState.LIVE
    assert service.push(a_manifest()).build == live.build


@pytest.mark.parametrize("ending", ["fail", "cancel"])
def test_a_pushed_bundle_that_is_not_proven_is_rejected_and_may_be_pushed_again(service: Service, ending: str) -> None:
    pushed = service.push(UNPROVEN)
    claim = service.claim("cpu-v3")
    if ending == "fail":
        error = ErrorBody(code="qualification-failed", message="differs")
        service.call("fail", FailRequest(error=error), token=claim.token, build=claim.build)
    else:
        service.call("cancel", CancelRequest(), build=claim.build)
    view = service.call("get_bundle", digest=pushed.bundle)
    assert view.state is BundleState.REJECTED and view.withdrawn_reason
    again = service.push(UNPROVEN)
    assert (again.bundle, again.state) == (pushed.bundle, BundleState.PENDING)
    assert again.build != pushed.build
    assert service.publish(service.claim("cpu-v3"), PROVEN).state is BundleState.LIVE


def test_nobody_swaps_the_code_while_proving_it(service: Service) -> None:
    service.push(UNPROVEN)
    claim = service.claim("cpu-v3")
    other = a_manifest(artifacts=(an_artifact(files=(a_file(content=b"other code"),)),))
    with pytest.raises(InvalidInput, match="other artifacts than the pushed one"):
        service.publish(claim, other)


def test_a_push_and_a_submission_of_one_key_are_builds_of_their_own(service: Service) -> None:
    pushed = service.push(UNPROVEN)
    submitted = service.submit(a_spec())
    assert submitted.created and submitted.build.id != pushed.build


def test_a_push_needs_source_and_blobs(service: Service) -> None:
    text, _ = manifest_text(UNPROVEN)
    with pytest.raises(BlobMissing) as refusal:
        service.call("push", PushRequest(manifest=text))
    assert len(refusal.value.details["digests"]) == 2
    service.upload(UNPROVEN.blobs)
    with pytest.raises(BlobMissing) as refusal:
        service.call("push", PushRequest(manifest=text))
    assert refusal.value.details["digests"] == [blob.digest for blob in a_spec().blobs]
    assert service.call("search").bundles == ()


def test_a_push_needs_its_scope_in_its_namespace(service: Service) -> None:
    token = service.token(Scope.PUSH, namespaces=("ours",))
    text, _ = manifest_text(UNPROVEN)
    with pytest.raises(Forbidden):
        service.call("push", PushRequest(manifest=text), token=token)
    ours = a_manifest(a_spec(namespace="ours"))
    assert service.push(ours, token=token).state is BundleState.PENDING


def test_a_push_for_a_profile_that_no_worker_is_or_that_has_changed_is_refused(service: Service) -> None:
    with pytest.raises(ProfileNotFound):
        service.push(a_manifest(profile=a_profile("unknown")))
    other = a_profile(toolchain=a_toolchain(torch="2.12.0+cpu"))
    with pytest.raises(Conflict, match=r"torch is \"2.12.0\+cpu\", the workers have \"2.13.0\+cpu\""):
        service.push(a_manifest(profile=other))


def test_a_pushed_manifest_must_be_sound(service: Service) -> None:
    for wrong in (altered(UNPROVEN, name=Name("other")), altered(UNPROVEN, artifacts=())):
        with pytest.raises(InvalidInput):
            service.push(wrong)


def test_a_build_that_proves_is_listed_like_any_other(service: Service) -> None:
    pushed = service.push(UNPROVEN)
    assert service.call("get_build", build=pushed.build).state is BuildState.QUEUED
