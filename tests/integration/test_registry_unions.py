"""Unions at the registry: no tag gets smaller by one, whether it is proven or pushed once more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.errors import Conflict, TagMoved
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.wire.bundles import PublishReply, WithdrawRequest
from tests.builders import a_file, a_profile, altered
from tests.route_builders import a_capture_artifact, a_capture_manifest, a_capture_source
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def a_capture(*graphs: str, union_of: Digest | None = None) -> Manifest:
    """What a worker has made of the command `train.py GRAPHS`, in the spec's order."""
    files = (
        *a_capture_artifact().files,
        *(a_file(f"inductor/fxgraph/ab/{graph}/one", graph.encode()) for graph in graphs),
    )
    source = a_capture_source(
        command=("python", "train.py", *graphs),
        entries=Digest.of(" ".join(graphs).encode()),
        requirements=(),
        union_of=union_of,
    )
    artifact = a_capture_artifact(files=tuple(sorted(files, key=lambda file: file.path)))
    return a_capture_manifest(source, artifacts=(artifact,))


def live(service: Service, manifest: Manifest) -> PublishReply:
    """Push it under `v1`, and let a worker prove it: to another manifest, as its seconds are its own."""
    service.push(manifest, tags=("v1",))
    return service.publish(service.claim("cpu-v3"), proven(manifest))


def proven(manifest: Manifest) -> Manifest:
    return altered(manifest, qualification=altered(manifest.qualification, seconds=4.0))


def tagged(service: Service) -> list[Digest]:
    reply = service.call("resolve", namespace="default", name="trainer", target="v1")
    return [bundle.digest for bundle in reply.bundles]


def test_a_union_that_is_pushed_once_more_takes_nothing_from_its_tag(service: Service) -> None:
    first = live(service, a_capture())
    union = a_capture("left", union_of=first.bundle)
    one = live(service, union)
    assert tagged(service) == [one.bundle]
    # Pushed again while it stands there: the same answer, and it stands there still.
    again = altered(union, provenance=altered(union.provenance, builder="another pod"))
    assert service.push(again, tags=("v1",)) == one and tagged(service) == [one.bundle]
    grown = live(service, a_capture("left", "right", union_of=one.bundle))
    assert service.push(again, tags=("v1", "v2")) == one
    assert tagged(service) == [grown.bundle]
    [other] = service.call("resolve", namespace="default", name="trainer", target="v2").bundles
    assert other.digest == one.bundle, "a tag that stood for nothing is taken"
    # A capture begins anew where it is asked to, also with what is live already.
    assert service.push(a_capture(), tags=("v1",)) == first and tagged(service) == [first.bundle]


def test_a_union_that_lacks_entries_is_told_what_the_tag_stands_for(service: Service) -> None:
    first = live(service, a_capture())
    for graph in ("left", "right"):
        service.push(a_capture(graph, union_of=first.bundle), tags=("v1",))
    claims = [service.claim("cpu-v3") for _ in range(2)]
    left, right = (a_capture(*claim.spec.source.command[2:], union_of=first.bundle) for claim in claims)
    there = service.publish(claims[0], proven(left))
    with pytest.raises(TagMoved, match="1 entries of that would be lost") as refusal:
        service.publish(claims[1], proven(right))
    assert refusal.value.details["found"] == there.bundle


def test_a_union_in_the_place_of_a_withdrawn_bundle_is_refused_for_good(service: Service) -> None:
    """No worker could join with it, so none is told to: TagMoved would be answered again and again."""
    first = live(service, a_capture())
    union = a_capture("left", union_of=first.bundle)
    service.push(union, tags=("v1",))
    claim = service.claim("cpu-v3")
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=first.bundle)
    with pytest.raises(Conflict, match="is withdrawn: a union does not replace it") as refusal:
        service.publish(claim, proven(union))
    assert type(refusal.value) is Conflict and "tag stand for a live bundle" in refusal.value.hint
