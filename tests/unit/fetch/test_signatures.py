"""Nothing unsigned, altered or of another model is used."""

from collections.abc import Callable

import pytest

from aot.cache import LocalCache
from aot.errors import MalformedDocument, NotFound, SignatureRejected
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, Statement
from aot.schema.names import Tag
from aot.schema.wire.bundles import SignedManifest
from aot.trust import SigningKey, TrustedKeys, sign
from tests.builders import a_manifest, a_spec, altered
from tests.simulator import RegistrySimulator
from tests.unit.fetch.nodes import LEVELS, MINI, Node, a_level, a_lock


def test_a_bundle_signed_by_another_key_is_refused_and_leaves_nothing(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest(), key=SigningKey.generate())
    with pytest.raises(SignatureRejected, match="signed by"):
        node.fetch()
    assert node.cache.get_manifest(digest) is None
    assert node.cache.recall_tag(MINI) is None
    assert node.cache.used_bytes() == 0


def test_an_unsigned_bundle_is_refused(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    signed = simulator.manifests[digest]
    simulator.manifests[digest] = altered(signed, envelope=altered(signed.envelope, signatures=()))
    with pytest.raises(SignatureRejected, match="0 signatures"):
        node.resolve()


def of_a_newer_format(simulator: RegistrySimulator, manifest: Manifest) -> Digest:
    """Publish the bundle as a newer version would: signed, and with a manifest of a format to come."""
    old = simulator.add(manifest, tags=())
    text = simulator.manifests.pop(old).manifest.replace('"format":1', '"format":2', 1)
    digest = Digest.of(text.encode())
    statement = Statement(
        manifest=digest, namespace=manifest.namespace, name=manifest.name, build_key=manifest.build_key
    )
    simulator.manifests[digest] = SignedManifest(
        digest=digest, manifest=text, envelope=sign(statement, simulator.key), tags=(Tag("latest"),)
    )
    simulator.tags[MINI] = (digest, *simulator.tags.get(MINI, ()))
    return digest


def by_an_unknown_signer(simulator: RegistrySimulator, manifest: Manifest) -> Digest:
    return simulator.add(manifest, key=SigningKey.generate())


def unsigned(simulator: RegistrySimulator, manifest: Manifest) -> Digest:
    digest = simulator.add(manifest)
    signed = simulator.manifests[digest]
    simulator.manifests[digest] = altered(signed, envelope=altered(signed.envelope, signatures=()))
    return digest


@pytest.mark.parametrize(
    ("publish", "reason"),
    [
        (of_a_newer_format, "the manifest has format 2, this version reads 1"),
        (by_an_unknown_signer, "signed by"),
        (unsigned, "0 signatures"),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_a_bundle_that_cannot_be_used_leaves_those_of_the_other_profiles(
    node: Node,
    simulator: RegistrySimulator,
    publish: Callable[[RegistrySimulator, Manifest], Digest],
    reason: str,
    locked: bool,
) -> None:
    good = simulator.add(a_level(LEVELS[0]))
    bad = publish(simulator, a_level(LEVELS[1]))
    lock = None
    if locked:
        lock = a_lock(a_level(LEVELS[0]), a_level(LEVELS[1]))
        entries = (lock.entries[0], altered(lock.entries[1], bundle=bad))
        lock = altered(lock, entries=entries)
    resolved = node.resolve(lock=lock)
    assert [one.digest for one in resolved.candidates] == [good]
    assert [one.bundle for one in resolved.refusals] == [bad]
    assert reason in resolved.refusals[0].reason
    assert node.cache.get_manifest(bad) is None, "what is refused is not kept"
    simulator.tags[MINI] = (bad,)
    simulator.withdraw(good)
    with pytest.raises((SignatureRejected, MalformedDocument), match=reason):
        Node(simulator, LocalCache(node.cache.root / "empty")).resolve()


def test_a_manifest_of_a_newer_format_that_another_version_cached_costs_no_request(
    node: Node, simulator: RegistrySimulator
) -> None:
    good, bad = simulator.add(a_level(LEVELS[0])), of_a_newer_format(simulator, a_level(LEVELS[1]))
    lock = a_lock(a_level(LEVELS[0]), a_level(LEVELS[1]))
    lock = altered(lock, entries=(lock.entries[0], altered(lock.entries[1], bundle=bad)))
    node.resolve(lock=lock)
    node.cache.put_manifest(simulator.manifests[bad])
    node.asked()
    resolved = node.resolve(lock=lock)
    assert ([one.digest for one in resolved.candidates], node.asked()) == ([good], [])
    assert [one.bundle for one in resolved.refusals] == [bad]


def test_no_trusted_key_means_nothing_is_used(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_manifest())
    with pytest.raises(SignatureRejected, match="no key is trusted") as caught:
        Node(simulator, cache, TrustedKeys(())).resolve()
    assert "AOT_TRUSTED_KEYS" in caught.value.hint


def test_an_altered_manifest_is_refused(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    signed = simulator.manifests[digest]
    simulator.manifests[digest] = altered(signed, manifest=signed.manifest.replace("v3", "v2", 1))
    with pytest.raises(SignatureRejected, match="bytes are not"):
        node.resolve()


def test_a_statement_about_another_bundle_is_refused(node: Node, simulator: RegistrySimulator) -> None:
    other = simulator.add(altered(a_manifest(), canaries=()), tags=())
    digest = simulator.add(a_manifest())
    signed = simulator.manifests[digest]
    simulator.manifests[digest] = altered(signed, envelope=simulator.manifests[other].envelope)
    with pytest.raises(SignatureRejected, match="the signature is for manifest"):
        node.resolve()


def test_another_models_bundle_under_the_name_is_refused(node: Node, simulator: RegistrySimulator) -> None:
    other = simulator.add(a_manifest(a_spec(name="other")))
    simulator.tags[MINI] = (other,)
    with pytest.raises(SignatureRejected, match="wanted mini"):
        node.resolve()


def test_another_bundle_than_the_digest_asked_for_is_not_taken(node: Node, simulator: RegistrySimulator) -> None:
    other = simulator.add(a_manifest())
    wanted = Digest.of(b"wanted")
    simulator.manifests[wanted] = simulator.manifests[other]
    with pytest.raises(NotFound, match="other bundles"):
        node.resolve(MINI.pinned_to(wanted))


def test_a_bundle_that_was_signed_again_by_a_new_key_is_fetched_anew(
    simulator: RegistrySimulator, cache: LocalCache
) -> None:
    digest = simulator.add(a_manifest())
    pinned = MINI.pinned_to(digest)
    Node(simulator, cache).resolve(pinned)
    new = SigningKey.generate()
    simulator.add(a_manifest(), key=new)
    trusting_new = Node(simulator, cache, TrustedKeys.of([str(new.public)]))
    assert trusting_new.resolve(pinned).candidates[0].cached is False
    assert trusting_new.resolve(pinned).candidates[0].cached is True


def test_a_cached_bundle_of_a_distrusted_key_is_not_used_offline(
    simulator: RegistrySimulator, cache: LocalCache
) -> None:
    pinned = MINI.pinned_to(simulator.add(a_manifest()))
    Node(simulator, cache).resolve(pinned)
    simulator.unreachable = True
    with pytest.raises(SignatureRejected):
        Node(simulator, cache, TrustedKeys.of([str(SigningKey.generate().public)])).resolve(pinned)


def test_a_cached_manifest_that_was_tampered_with_is_fetched_anew(
    node: Node, simulator: RegistrySimulator, cache: LocalCache
) -> None:
    digest = simulator.add(a_manifest())
    node.resolve(MINI.pinned_to(digest))
    [path] = (cache.root / "manifests").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"x86-64-v3", b"x86-64-v2"))
    node.asked()
    assert node.resolve(MINI.pinned_to(digest)).candidates[0].cached is False
    assert len(node.asked()) == 1
