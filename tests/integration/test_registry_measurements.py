"""What tuning has measured, beside a bundle: kept, given to later builds of the namespace, gone with the bundle."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from aot.errors import BlobMissing, InvalidInput
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Blob
from aot.schema.wire.builds import Claim
from aot.schema.wire.bundles import PublishReply, PublishRequest, WithdrawRequest
from registry.db.models import BlobRow, MeasurementRow
from registry.services.retention import plan, retain
from tests.builders import a_blob, a_device, a_manifest, a_profile, a_spec, manifest_text
from tests.service import Service, a_service

CPU = a_profile()
DAYS_60 = timedelta(days=60).total_seconds()


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(CPU)
        yield service


def claimed(
    service: Service,
    name: str,
    *,
    profile: Profile = CPU,
    mode: Mode = Mode.MAX_AUTOTUNE,
    namespace: str = "default",
) -> Claim:
    """Submit and claim a build of its own."""
    spec = a_spec(name=Name(name), namespace=Namespace(namespace), profile=profile.name, recipe=Recipe(mode=mode))
    build = service.submit(spec).build
    return service.claim(profile.name, build=build.id)


def publish(service: Service, claim: Claim, measurements: Blob | None, *, upload: bool = True) -> PublishReply:
    manifest = a_manifest(claim.spec, profile=claim.profile)
    wanted = (*manifest.blobs, *((measurements,) if measurements and upload else ()))
    service.upload(wanted, namespace=manifest.namespace, token=claim.token)
    request = PublishRequest(manifest=manifest_text(manifest)[0], measurements=measurements)
    reply: PublishReply = service.call("publish", request, token=claim.token, build=claim.build)
    return reply


def given(service: Service, claim: Claim) -> bytes | None:
    return None if claim.measurements is None else service.http.get(claim.measurements.url).content


def test_the_next_build_of_the_profile_is_given_what_the_last_one_measured(service: Service) -> None:
    first = claimed(service, "first")
    assert (first.measurements, first.keeps_measurements) == (None, True)
    publish(service, first, a_blob(b"measured once"))
    service.clock.advance(1)
    second = claimed(service, "second")
    assert given(service, second) == b"measured once"
    publish(service, second, a_blob(b"measured twice"))
    assert given(service, claimed(service, "third", mode=Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS)) == b"measured twice"


def test_measurements_are_no_part_of_the_bundle(service: Service) -> None:
    blob = a_blob(b"beside the bundle")
    reply = publish(service, claimed(service, "first"), blob)
    (found,) = service.call("resolve", namespace="default", name="first", target=reply.bundle).bundles
    assert blob.digest not in found.manifest


@pytest.mark.parametrize(
    "other",
    [
        {"namespace": "others"},
        {"mode": Mode.DEFAULT},
        {"profile": a_profile(name="cuda-a", capability="cuda:sm_90", device=a_device())},
    ],
    ids=["another namespace", "a mode that does not tune", "another profile"],
)
def test_measurements_are_given_to_no_other_build(service: Service, other: dict[str, Any]) -> None:
    publish(service, claimed(service, "first"), a_blob(b"of the namespace default"))
    if profile := other.get("profile"):
        service.register(CPU, profile)
    assert claimed(service, "second", **other).measurements is None


def test_those_of_a_withdrawn_bundle_are_not_given_and_an_earlier_ones_are(service: Service) -> None:
    publish(service, claimed(service, "first"), a_blob(b"measured before"))
    service.clock.advance(1)
    reply = publish(service, claimed(service, "second"), a_blob(b"of a bundle that is withdrawn"))
    service.call("withdraw", WithdrawRequest(reason="slow"), digest=reply.bundle)
    assert given(service, claimed(service, "third")) == b"measured before"


def test_measurements_that_were_not_uploaded_are_refused(service: Service) -> None:
    claim = claimed(service, "first")
    blob = a_blob(b"never uploaded")
    with pytest.raises(BlobMissing) as caught:
        publish(service, claim, blob, upload=False)
    assert caught.value.details["digests"] == [blob.digest]


@pytest.mark.parametrize("size_bytes", [0, (64 << 20) + 1])
def test_measurements_of_no_likely_size_are_refused(service: Service, size_bytes: int) -> None:
    with pytest.raises(InvalidInput, match="wanted 1 to 67108864"):
        publish(
            service, claimed(service, "first"), Blob(digest=a_blob(b"x").digest, size_bytes=size_bytes), upload=False
        )


def test_measurements_are_kept_as_long_as_their_bundle_and_no_longer(service: Service) -> None:
    blob = a_blob(b"kept with its bundle")
    reply = publish(service, claimed(service, "first"), blob)
    for _ in range(3):
        service.clock.advance(DAYS_60)
        service.call("resolve", namespace="default", name="first", target=reply.bundle)
        service.deps.uses.flush(service.deps.sessions)
        retain(service.deps)
    assert kept(service, blob) == (1, True)
    service.call("withdraw", WithdrawRequest(reason="old"), digest=reply.bundle)
    service.clock.advance(DAYS_60)
    planned = plan(service.deps)
    assert (reply.bundle in planned.bundles, blob.digest in planned.condemned) == (True, True)
    for _ in range(3):
        retain(service.deps)
        service.clock.advance(DAYS_60)
    assert kept(service, blob) == (0, False)


def kept(service: Service, blob: Blob) -> tuple[int, bool]:
    """How many bundles have measurements, and whether the blob is there."""
    with service.deps.sessions.reading() as session:
        found = len(session.scalars(select(MeasurementRow)).all())
        return found, session.get(BlobRow, blob.digest) is not None
