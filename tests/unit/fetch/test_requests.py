"""What a node asks of the registry: one request where it is cold, none where a digest is warm; tags and locks."""

import pytest

from aot.errors import InvalidInput, SignatureRejected
from aot.schema.digest import BuildKey, Digest
from tests.builders import a_manifest, altered
from tests.simulator import RegistrySimulator, a_reference
from tests.unit.fetch.nodes import LEVELS, MINI, Node, a_level, a_lock

# What is asked of the registry


def test_a_cold_node_gets_manifests_and_links_with_one_request(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    paths = node.fetch()
    assert [Digest.of(path.read_bytes()) for path in paths.values()] == list(paths)
    assert node.asked() == ["GET /v1/models/default/mini/latest"]
    node.cache.root.rename(node.cache.root.with_name("lost"))
    node.fetch(MINI.pinned_to(digest))
    assert node.asked() == [f"GET /v1/models/default/mini/{digest}"]


def test_links_that_did_not_come_along_are_asked_for(node: Node, simulator: RegistrySimulator) -> None:
    simulator.links_at_once = False
    digest = simulator.add(a_manifest())
    node.fetch()
    assert node.asked() == ["GET /v1/models/default/mini/latest", f"POST /v1/bundles/{digest}/links"]


def test_a_node_that_knows_the_tag_asks_for_links_to_what_it_lacks_alone(
    node: Node, simulator: RegistrySimulator
) -> None:
    simulator.add(a_manifest())
    node.fetch()
    node.asked()
    newer = simulator.add(altered(a_manifest(), canaries=()))
    node.fetch()
    assert node.asked() == ["GET /v1/models/default/mini/latest"], "every blob of it lies on the node"
    lost = next(iter(node.fetch()))
    node.asked()
    path = node.cache.path_of(lost)
    assert path is not None
    path.unlink()
    node.fetch()
    assert node.asked() == ["GET /v1/models/default/mini/latest", f"POST /v1/bundles/{newer}/links"]


def test_a_warm_node_asks_once_where_the_tag_stands(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    node.fetch()
    node.asked()
    node.fetch()
    assert node.asked() == ["GET /v1/models/default/mini/latest"]


def test_a_warm_node_asks_nothing_about_a_digest(node: Node, simulator: RegistrySimulator) -> None:
    pinned = MINI.pinned_to(simulator.add(a_manifest()))
    node.fetch(pinned)
    node.asked()
    node.fetch(pinned)
    assert node.asked() == []


def test_a_warm_node_asks_nothing_about_what_a_lock_pins(node: Node, simulator: RegistrySimulator) -> None:
    manifests = [a_level(level) for level in LEVELS]
    for manifest in manifests:
        simulator.add(manifest)
    lock = a_lock(*manifests)
    node.fetch(lock=lock)
    node.asked()
    node.fetch(lock=lock)
    assert node.asked() == []


def test_a_lock_of_several_profiles_takes_one_request_for_all_manifests(
    node: Node, simulator: RegistrySimulator
) -> None:
    manifests = [a_level(level) for level in LEVELS]
    digests = [simulator.add(manifest) for manifest in manifests]
    resolved = node.resolve(lock=a_lock(*manifests))
    assert [one.digest for one in resolved.candidates] == digests
    assert len(node.asked()) == 1


def test_only_the_manifests_that_the_node_lacks_are_asked_for(node: Node, simulator: RegistrySimulator) -> None:
    manifests = [a_level(level) for level in LEVELS]
    digests = [simulator.add(manifest) for manifest in manifests]
    node.resolve(MINI.pinned_to(digests[1]))
    node.asked()
    resolved = node.resolve(lock=a_lock(*manifests))
    assert [one.digest for one in resolved.candidates] == digests
    assert node.asked() == [f"GET /v1/models/default/mini/{digests[0]}%2C{digests[2]}"]


# Tags move, locks do not


def test_a_moved_tag_is_followed(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    node.resolve()
    newer = simulator.add(altered(a_manifest(), canaries=()))
    assert [one.digest for one in node.resolve().candidates] == [newer]


def test_a_lock_holds_where_the_tag_has_moved_on(node: Node, simulator: RegistrySimulator) -> None:
    older = a_manifest()
    digest = simulator.add(older)
    simulator.add(altered(older, canaries=()))
    resolved = node.resolve(lock=a_lock(older))
    assert [one.digest for one in resolved.candidates] == [digest]
    assert (resolved.pinned, resolved.stale) == (True, False)


def test_a_lock_is_found_by_the_digest_it_pins_as_well(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    lock = a_lock(a_manifest(), build_key=BuildKey.of(b"another"))
    with pytest.raises(SignatureRejected, match="build_key"):
        node.resolve(MINI.pinned_to(digest), lock=lock)


def test_a_lock_that_does_not_pin_the_model_says_what_it_pins(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    lock = a_lock(a_manifest())
    with pytest.raises(InvalidInput, match="does not pin default/mini:v2; it pins default/mini:latest") as caught:
        node.resolve(a_reference(tag="v2"), lock=lock)
    assert "aot ensure" in caught.value.hint
    assert node.asked() == []


def test_a_lock_with_another_build_key_is_refused(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    lock = a_lock(a_manifest(), build_key=BuildKey.of(b"another"))
    with pytest.raises(SignatureRejected, match="the signature is for build_key"):
        node.resolve(lock=lock)
    assert node.cache.get_manifest(digest) is None


def test_a_resolved_lock_is_not_remembered_as_what_the_registry_said_of_the_tag(
    node: Node, simulator: RegistrySimulator
) -> None:
    simulator.add(a_manifest())
    node.resolve(lock=a_lock(a_manifest()))
    assert node.cache.recall_tag(MINI) is None
