"""Publish: what is refused, what becomes visible, all of it or nothing."""

import hashlib
import io

import pytest

from aot.errors import (
    BlobMissing,
    BlobPending,
    BuildFinished,
    Forbidden,
    InvalidInput,
    MalformedDocument,
    QualificationFailed,
    SizeMismatch,
)
from aot.schema.artifact import CoverageKind
from aot.schema.guard import HostGuard
from aot.schema.manifest import Canary
from aot.schema.recipe import Randomness, Recipe, Route
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.builds import CancelRequest
from aot.schema.wire.bundles import PublishRequest
from tests.builders import (
    BYTES,
    a_coverage,
    a_file,
    a_gpu_profile,
    a_manifest,
    a_profile,
    a_qualification,
    a_source,
    a_spec,
    a_speed,
    a_start_proof,
    altered,
    an_agreement,
    an_artifact,
    host_guards,
    manifest_text,
)
from tests.service import Service, a_service

UNCHECKED = Recipe(random=Randomness.UNCHECKED)
DIFFERS = an_agreement(agrees=False, max_error=41.0)
PICKY = Recipe(require_faster=True)


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def nothing_changed(service: Service) -> bool:
    [build] = service.call("list_builds").builds
    return build.state is BuildState.RUNNING and service.call("search").bundles == ()


def test_the_same_publish_again_gets_the_same_reply(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    reply = service.publish(claim)

    def repeat(manifest):
        text, _ = manifest_text(manifest)
        return service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)

    assert repeat(a_manifest()) == reply
    with pytest.raises(BuildFinished):
        repeat(a_manifest(qualification=a_qualification(seconds=9.0)))
    assert len(service.call("search").bundles) == 1


def test_a_bundle_becomes_visible_with_its_build_and_tags(service: Service) -> None:
    build = service.submit(a_spec(), tags=("v1",)).build
    service.clock.advance(5)
    manifest = a_manifest(artifacts=(an_artifact(speeds=(a_speed(), a_speed(compiled_us=160.0))),))
    reply = service.publish(service.claim("cpu-v3"), manifest)
    view = service.call("get_bundle", digest=reply.bundle)
    assert (view.state, view.build_key, view.tags) == (BundleState.LIVE, build.build_key, ("v1",))
    assert (view.capability, view.torch, view.routes, view.regions) == (
        "cpu:x86-64-v3",
        "2.13.0+cpu",
        ("package",),
        1,
    )
    assert (view.size_bytes, view.frozen, view.speedup) == (manifest.size_bytes, False, 200 / 160)
    assert view.created_at == view.published_at == service.clock()
    after = service.call("get_build", build=build.id)
    assert (after.state, after.bundle, after.report) == (
        BuildState.PUBLISHED,
        reply.bundle,
        manifest.compile_report,
    )


def test_a_tag_moves_to_the_bundle_that_is_published_last(service: Service) -> None:
    service.published(a_spec(), tags=("latest",))
    second = service.published(a_spec(source=a_source(b"changed")), tags=("latest",))
    [bundle] = service.call("resolve", namespace="default", name="mini", target="latest").bundles
    assert bundle.digest == second.bundle


@pytest.mark.parametrize(
    ("qualification", "reason"),
    [
        (a_qualification(start=None), "no fresh process has loaded it"),
        (a_qualification(start=a_start_proof(processes=("/usr/bin/g++",))), "started others: /usr/bin/g++"),
        (
            a_qualification(start=a_start_proof(compiler_modules=("torch._inductor",))),
            "imported the compiler",
        ),
        (a_qualification(start=a_start_proof(counted_by="polling")), "counted by polling, wanted ptrace"),
        (a_qualification(recompiles=1), "compiled again 1 times"),
        (a_qualification(agreements=()), "artifact 0 was not compared with eager"),
        (a_qualification(agreements=(an_agreement(artifact=1),)), "artifact 0 was not compared with eager"),
        (a_qualification(agreements=(an_agreement(), DIFFERS)), "differs from float64 by 41"),
        (a_qualification(numerics="unchecked: draws random numbers"), "which the recipe does not allow"),
        (a_qualification(profile="other"), "proven on other"),
        (a_qualification(torch="2.12.0+cpu"), "with torch 2.12.0"),
    ],
)
def test_nothing_goes_live_unproven(service: Service, qualification, reason: str) -> None:
    service.submit(a_spec())
    with pytest.raises(QualificationFailed, match="not proven") as refusal:
        service.publish(service.claim("cpu-v3"), a_manifest(qualification=qualification))
    assert any(reason in failure for failure in refusal.value.details["failures"])
    assert nothing_changed(service)


def test_a_program_that_draws_random_numbers_is_published_where_the_recipe_allows_it(
    service: Service,
) -> None:
    service.submit(a_spec(recipe=UNCHECKED))
    claim = service.claim("cpu-v3")
    proof = a_qualification(numerics="unchecked: draws random numbers", agreements=())
    assert service.publish(claim, a_manifest(claim.spec, qualification=proof)).state is BundleState.LIVE


def test_a_recipe_that_requires_faster_refuses_what_is_slower(service: Service) -> None:
    service.submit(a_spec(recipe=PICKY))
    claim = service.claim("cpu-v3")
    slow = an_artifact(speeds=(a_speed(), a_speed(compiled_us=210.0)))
    with pytest.raises(QualificationFailed, match="requires it to be faster"):
        service.publish(claim, a_manifest(claim.spec, artifacts=(slow,)))
    assert service.publish(claim, a_manifest(claim.spec)).state is BundleState.LIVE


@pytest.mark.parametrize(
    "manifest",
    [
        a_manifest(a_spec("other")),
        a_manifest(a_spec(namespace="other")),
        a_manifest(a_spec(recipe=UNCHECKED)),
        a_manifest(factors=()),
        altered(a_manifest(), build_key=a_manifest(a_spec(source=a_source(b"x"))).build_key),
        altered(a_manifest(), spec=a_spec(recipe=UNCHECKED)),
        altered(a_manifest(), profile=a_profile(threads=4)),
        altered(a_manifest(), profile=a_profile("renamed")),
        a_manifest(artifacts=()),
        a_manifest(artifacts=(an_artifact(capability="cpu:x86-64-v4"),)),
        a_manifest(artifacts=(an_artifact(route=Route.FUNCTION),)),
        a_manifest(artifacts=(an_artifact(host_guards=host_guards()[1:]),)),
        a_manifest(artifacts=(an_artifact(files=()),)),
        a_manifest(artifacts=(an_artifact(files=(a_file(), a_file(content=b"other"))),)),
        a_manifest(canaries=(Canary(artifact=1, seed=0, point={}),)),
    ],
    ids=[
        "name",
        "namespace",
        "recipe",
        "factors",
        "key",
        "spec",
        "threads",
        "profile",
        "no artifact",
        "capability",
        "route",
        "guards",
        "no file",
        "same path",
        "canary",
    ],
)
def test_a_manifest_that_is_not_the_answer_to_the_build_is_refused(service: Service, manifest) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    text, _ = manifest_text(manifest)
    with pytest.raises((InvalidInput, Forbidden)):
        service.upload(a_manifest().blobs, token=claim.token)
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)
    assert nothing_changed(service)


def test_an_artifact_with_guards_that_this_version_does_not_know_is_published(service: Service) -> None:
    service.submit(a_spec())
    newer = an_artifact(host_guards=(*host_guards(), HostGuard(kind="phase-of-moon", value="full")))
    assert service.publish(service.claim("cpu-v3"), a_manifest(artifacts=(newer,))).state is BundleState.LIVE


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text.replace('{"', '{ "', 1),
        lambda text: text.replace('"artifacts"', '"format":1,"artifacts"', 1),
        lambda text: text.replace('"artifacts"', '"surprise":1,"artifacts"', 1),
        lambda text: text.replace('"artifacts"', '"format":99,"artifacts"', 1),
        lambda text: "",
    ],
    ids=["truncated", "white space", "default written out", "unknown field", "future format", "empty"],
)
def test_only_the_canonical_bytes_of_a_manifest_are_taken(service: Service, spoil) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    text, _ = manifest_text(a_manifest())
    with pytest.raises(MalformedDocument):
        service.call("publish", PublishRequest(manifest=spoil(text)), token=claim.token, build=claim.build)
    assert nothing_changed(service)


def test_publish_names_the_blobs_that_were_not_uploaded(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    artifact = an_artifact(files=(a_file(), a_file("cubin/k.cubin", b"kernel")))
    manifest = a_manifest(artifacts=(artifact,))
    service.upload(manifest.blobs[:1], token=claim.token)
    text, _ = manifest_text(manifest)
    with pytest.raises(BlobMissing) as refusal:
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)
    assert refusal.value.details["digests"] == [manifest.blobs[1].digest]
    assert nothing_changed(service)
    assert service.publish(claim, manifest).state is BundleState.LIVE


def test_the_outputs_of_a_canary_are_blobs_of_the_bundle(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    expected = a_file("expected/0", b"outputs")
    canaries = (Canary(artifact=0, seed=1, point={"batch": 2}, expected=(expected,)),)
    reply = service.publish(claim, a_manifest(canaries=canaries))
    from aot.schema.wire.blobs import DownloadLinksRequest

    links = service.call("get_download_links", DownloadLinksRequest(digests=(expected.digest,)), digest=reply.bundle)
    assert service.http.get(links.links[0].url).content == b"outputs"


def test_publish_refuses_a_blob_of_another_size(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    service.upload(a_manifest().blobs, token=claim.token)
    wrong = altered(a_file(), size_bytes=a_file().size_bytes + 1)
    text, _ = manifest_text(a_manifest(artifacts=(an_artifact(files=(wrong,)),)))
    with pytest.raises(SizeMismatch):
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)
    assert nothing_changed(service)


def test_a_digest_with_two_sizes_is_refused(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    wrong = altered(a_file("lib/b.so"), size_bytes=1)
    manifest = a_manifest(artifacts=(an_artifact(files=(a_file(), wrong)),))
    text, _ = manifest_text(manifest)
    with pytest.raises(InvalidInput, match="two sizes"):
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)


def test_equal_blobs_of_two_artifacts_are_uploaded_and_linked_once(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    exact = an_artifact(coverage=a_coverage(kind=CoverageKind.EXACT))
    of_both = [an_agreement(artifact=index, variant=variant) for index in (0, 1) for variant in ("", "second call")]
    of_both += [an_agreement(artifact=index, point={"batch": 32}) for index in (0, 1)]
    proof = a_qualification(agreements=tuple(of_both))
    manifest = a_manifest(artifacts=(an_artifact(), exact), qualification=proof)
    assert service.upload(manifest.blobs, token=claim.token) == [a_file().digest]
    assert service.publish(claim, manifest).state is BundleState.LIVE


def test_a_cancelled_build_publishes_nothing(service: Service) -> None:
    build = service.submit(a_spec()).build
    claim = service.claim("cpu-v3")
    service.upload(a_manifest().blobs, token=claim.token)
    service.call("cancel", CancelRequest(), build=build.id)
    text, _ = manifest_text(a_manifest())
    with pytest.raises(BuildFinished):
        service.call("publish", PublishRequest(manifest=text), token=claim.token, build=claim.build)
    assert service.call("search").bundles == ()


def test_a_gpu_bundle_is_published_for_its_profile(service: Service) -> None:
    service.register(a_gpu_profile(), worker="gpu-1")
    service.submit(a_spec(profile="h100"))
    claim = service.claim("h100", worker="gpu-1")
    reply = service.publish(claim)
    assert service.call("get_bundle", digest=reply.bundle).capability == "cuda:sm_90"


class TrustingStore:
    """An object store that takes whatever it is sent, as some do."""

    enforces_checksum = False

    def __init__(self, store) -> None:
        self.store, self.content = store, {}

    def stat(self, digest):
        return len(self.content[digest]) if digest in self.content else None

    def open(self, digest):
        return io.BytesIO(self.content[digest])

    def version(self, digest):
        return str(id(self.content[digest])) if digest in self.content else None

    def delete(self, digest, *, version=None):
        assert version == self.version(digest), "exactly what was read"
        return self.content.pop(digest, None) is not None

    def upload_link(self, blob, *, expires_in):
        return self.store.upload_link(blob, expires_in=expires_in)

    download_link = upload_link


def test_uploads_to_a_store_that_does_not_compare_digests_are_hashed_first(tmp_path) -> None:
    with a_service(tmp_path) as service:
        trusting = TrustingStore(service.deps.store)
        object.__setattr__(service.deps, "store", trusting)
        service.register(a_profile())
        [source] = a_spec().blobs
        from aot.schema.names import Namespace
        from aot.schema.wire.blobs import OpenUploadsRequest
        from aot.schema.wire.builds import SubmitRequest

        opening = OpenUploadsRequest(namespace=Namespace("default"), blobs=(source,))
        service.call("open_uploads", opening)
        trusting.content[source.digest] = b"evil source"
        assert hashlib.sha256(b"evil source").hexdigest() != source.digest.hex
        assert len(b"evil source") == source.size_bytes
        with pytest.raises(BlobPending):
            service.call("submit", SubmitRequest(spec=a_spec()))
        assert service.sweep().hashed == 0
        with pytest.raises(BlobMissing):
            service.call("submit", SubmitRequest(spec=a_spec()))
        trusting.content[source.digest] = BYTES[source.digest]
        assert service.sweep().hashed == 1
        assert service.call("submit", SubmitRequest(spec=a_spec())).created
