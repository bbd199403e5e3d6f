"""The whole flow through HTTP: submit, claim, publish, resolve, fetch."""

import pytest

from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Reference
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.trust import TrustedKeys, verify
from tests.builders import BYTES, a_manifest, a_profile, a_spec
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        yield service


def test_a_submitted_spec_ends_as_a_signed_bundle_that_a_pod_can_fetch(service: Service) -> None:
    service.register(a_profile())
    build = service.submit(a_spec(), tags=("v1", "latest")).build
    assert (build.state, build.attempt, build.waiting) == (BuildState.QUEUED, 0, "")
    [(queue, ticket)] = service.queue.take()
    assert ticket.build == build.id and queue.startswith("build.cpu-x86-64-v3.")

    claim = service.claim("cpu-v3", build=ticket.build)
    assert (claim.build, claim.attempt, claim.spec) == (build.id, 1, a_spec())
    assert service.http.get(claim.links[0].url).content == b"source tree"

    reply = service.publish(claim)
    assert (reply.state, reply.build) == (BundleState.LIVE, build.id)

    after = service.call("get_build", build=build.id)
    assert (after.state, after.bundle) == (BuildState.PUBLISHED, reply.bundle)

    [bundle] = service.call("resolve", namespace="default", name="mini", target="v1").bundles
    assert bundle.digest == reply.bundle == Digest.of(bundle.manifest.encode())
    assert bundle.tags == ("latest", "v1")
    trusted = TrustedKeys.of(service.call("get_keys").keys)
    statement = verify(
        bundle.envelope, trusted, manifest=bundle.digest, namespace=Namespace("default"), name=Name("mini")
    )
    assert statement.build_key == build.build_key

    links = service.call("get_download_links", DownloadLinksRequest(), digest=reply.bundle).links
    manifest = a_manifest()
    assert [(link.digest, link.size_bytes) for link in links] == [
        (blob.digest, blob.size_bytes) for blob in manifest.blobs
    ]
    assert service.http.get(links[0].url).content == BYTES[links[0].digest]
    assert Reference.parse("mini:v1").namespace == "default"
