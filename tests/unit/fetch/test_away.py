"""Withdrawn, missing, or no registry at all."""

import pytest

from aot.errors import (
    BundleNotFound,
    BundleWithdrawn,
    NotARegistry,
    RegistryUnreachable,
    StorageUnavailable,
    TagNotFound,
)
from aot.runtime.fetch import ensure_artifacts
from aot.schema.digest import Digest
from tests.builders import a_manifest
from tests.simulator import RegistrySimulator
from tests.unit.fetch.nodes import LEVELS, MINI, Node, a_level, a_lock

# Withdrawn and missing


def test_a_withdrawn_bundle_is_refused_with_its_reason(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    simulator.withdraw(digest, reason="wrong results on batch 1")
    for reference in (MINI, MINI.pinned_to(digest)):
        with pytest.raises(BundleWithdrawn, match="wrong results on batch 1"):
            node.resolve(reference)
    with pytest.raises(BundleWithdrawn):
        node.resolve(lock=a_lock(a_manifest()))


def test_a_withdrawal_is_seen_by_a_warm_node_that_asks_for_the_tag(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    node.fetch()
    simulator.withdraw(digest)
    with pytest.raises(BundleWithdrawn):
        node.fetch()


def test_one_withdrawn_profile_does_not_take_the_others_along(node: Node, simulator: RegistrySimulator) -> None:
    manifests = [a_level(level) for level in LEVELS]
    digests = [simulator.add(manifest) for manifest in manifests]
    simulator.withdraw(digests[0])
    lock = a_lock(*manifests)
    assert [one.digest for one in node.resolve(lock=lock).candidates] == digests[1:]
    assert [one.digest for one in node.resolve(lock=lock).candidates] == digests[1:], "and so when it is warm"


def test_an_unknown_tag_or_digest_is_named(node: Node) -> None:
    with pytest.raises(TagNotFound, match="default/mini:latest"):
        node.resolve()
    with pytest.raises(BundleNotFound):
        node.resolve(MINI.pinned_to(Digest.of(b"nothing")))


# The registry is away


def test_a_cold_node_without_a_registry_raises(node: Node, simulator: RegistrySimulator) -> None:
    simulator.unreachable = True
    with pytest.raises(RegistryUnreachable):
        node.resolve()


def test_a_warm_node_uses_the_remembered_tag_and_says_that_it_may_be_stale(
    node: Node, simulator: RegistrySimulator
) -> None:
    digest = simulator.add(a_manifest())
    node.fetch()
    simulator.unreachable = True
    resolved = node.resolve()
    assert ([one.digest for one in resolved.candidates], resolved.stale) == ([digest], True)
    assert node.fetch()


def test_a_node_that_asks_nobody_does_not_say_that_it_lacks_what_it_uses(
    node: Node, simulator: RegistrySimulator, caplog: pytest.LogCaptureFixture
) -> None:
    simulator.add(a_manifest())
    node.fetch()
    node.client = None
    assert node.resolve().stale
    assert "last resolved: no registry may be asked" in caplog.text and "not on this node" not in caplog.text


def test_a_registry_that_answers_503_counts_as_away(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    node.fetch()
    simulator.refuse(StorageUnavailable("the database is away"), times=10)
    assert node.resolve().stale


def test_something_else_at_the_registrys_address_counts_as_away(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    page = NotARegistry("GET was answered 404 with text/html, not by a registry")
    simulator.refuse(page)
    with pytest.raises(NotARegistry):
        node.resolve()
    node.fetch()
    simulator.refuse(page)
    assert node.resolve().stale


def test_a_stale_tag_does_not_renew_what_is_remembered(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    node.fetch()
    seen = node.cache.recall_tag(MINI)
    simulator.unreachable = True
    node.resolve()
    assert node.cache.recall_tag(MINI) == seen


def test_what_a_lock_pins_is_not_stale_without_a_registry(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    lock = a_lock(a_manifest())
    node.fetch(lock=lock)
    simulator.unreachable = True
    assert node.fetch(lock=lock)
    assert node.resolve(lock=lock).stale is False


def test_without_a_registry_a_lock_is_served_from_the_profiles_that_are_here(
    node: Node, simulator: RegistrySimulator
) -> None:
    manifests = [a_level(level) for level in LEVELS]
    digests = [simulator.add(manifest) for manifest in manifests]
    node.resolve(MINI.pinned_to(digests[1]))
    simulator.unreachable = True
    assert [one.digest for one in node.resolve(lock=a_lock(*manifests)).candidates] == [digests[1]]


def test_nor_without_one_at_its_address(node: Node, simulator: RegistrySimulator) -> None:
    manifests = [a_level(level) for level in LEVELS]
    digests = [simulator.add(manifest) for manifest in manifests]
    node.resolve(MINI.pinned_to(digests[1]))
    simulator.refuse(NotARegistry("answered 404 with text/html, not by a registry"), times=2)
    assert [one.digest for one in node.resolve(lock=a_lock(*manifests)).candidates] == [digests[1]]
    with pytest.raises(NotARegistry):  # where nothing of it is here
        node.resolve(lock=a_lock(manifests[0]))


def test_a_node_that_is_offline_says_so(node: Node, simulator: RegistrySimulator) -> None:
    node.client = None
    with pytest.raises(RegistryUnreachable, match="is not on this node, and there is no registry to ask"):
        node.resolve()
    node.client = simulator.client()
    simulator.add(a_manifest())
    candidate, selection = node.choose()
    with pytest.raises(RegistryUnreachable, match="1 blob"):
        ensure_artifacts(candidate, selection, client=None, cache=node.cache)
