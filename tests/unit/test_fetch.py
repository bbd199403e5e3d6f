"""Stories of resolving and fetching: a registry that lies, forgets or is gone, and what a node still does."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cache import Incoming, LocalCache
from aot.client import RegistryClient
from aot.errors import (
    AotError,
    BundleNotFound,
    BundleWithdrawn,
    DigestMismatch,
    InvalidInput,
    LocalStorageFull,
    MalformedDocument,
    NotFound,
    RegistryUnreachable,
    SignatureRejected,
    SizeMismatch,
    StorageUnavailable,
    TagNotFound,
)
from aot.runtime.fetch import Candidate, Resolved, ensure_artifacts, ensure_verified, remember, resolve
from aot.schema.decision import Selection
from aot.schema.digest import BuildKey, Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.manifest import Manifest, Statement
from aot.schema.names import Reference, Tag
from aot.schema.wire.bundles import SignedManifest
from aot.select import select
from aot.trust import SigningKey, TrustedKeys, sign
from tests.builders import a_file, a_manifest, a_profile, a_spec, altered, an_artifact, an_environment, manifest_text
from tests.simulator import RegistrySimulator, a_reference

MINI = a_reference()
LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    return LocalCache(tmp_path / "cache")


class Node:
    """One node's cache, the registry that it asks, and the keys that it trusts."""

    def __init__(self, simulator: RegistrySimulator, cache: LocalCache, trusted: TrustedKeys | None = None) -> None:
        self.simulator = simulator
        self.cache = cache
        self.trusted = simulator.trusted if trusted is None else trusted
        self.client: RegistryClient | None = simulator.client()

    def resolve(self, reference: Reference = MINI, *, lock: Lock | None = None) -> Resolved:
        resolved = resolve(reference, client=self.client, cache=self.cache, trusted=self.trusted, lock=lock)
        remember(resolved, self.cache)
        return resolved

    def fetch(self, reference: Reference = MINI, *, lock: Lock | None = None) -> dict[Digest, Path]:
        """As a pod does: resolve, select, ensure, hash."""
        candidate, selection = self.choose(reference, lock=lock)
        return ensure_verified(candidate, selection, client=self.client, cache=self.cache)

    def choose(self, reference: Reference = MINI, *, lock: Lock | None = None) -> tuple[Candidate, Selection]:
        resolved = self.resolve(reference, lock=lock)
        selection = select(resolved.bundles, an_environment())
        assert selection.bundle is not None, selection.reasons
        return resolved.candidate(selection.bundle), selection

    def asked(self) -> list[str]:
        """The requests since the last time, without the bytes behind links."""
        sent, self.simulator.sent = self.simulator.sent, []
        return [f"{one.method} {one.path}" for one in sent if not one.path.startswith("/blobs/")]


@pytest.fixture
def node(simulator: RegistrySimulator, cache: LocalCache) -> Node:
    return Node(simulator, cache)


def a_level(capability: str) -> Manifest:
    """The bundle of model mini for one CPU level."""
    profile = a_profile(capability.replace(":", "-"), capability=capability)
    return a_manifest(a_spec(profile=profile.name), profile=profile)


def a_lock(*manifests: Manifest, build_key: BuildKey | None = None) -> Lock:
    """Pins these manifests under the tag latest; `build_key` deviates from theirs."""
    return Lock(
        entries=tuple(
            LockEntry(
                reference=MINI,
                profile=manifest.profile.name,
                bundle=manifest_text(manifest)[1],
                build_key=build_key or manifest.build_key,
            )
            for manifest in manifests
        )
    )


# What is asked of the registry


def test_a_cold_node_makes_two_requests(node: Node, simulator: RegistrySimulator) -> None:
    digest = simulator.add(a_manifest())
    node.fetch()
    assert node.asked() == ["GET /v1/models/default/mini/latest", f"POST /v1/bundles/{digest}/links"]


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


# Nothing unsigned is used


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


def test_a_registry_that_answers_503_counts_as_away(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_manifest())
    node.fetch()
    simulator.refuse(StorageUnavailable("the database is away"), times=10)
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


def test_a_node_that_is_offline_says_so(node: Node, simulator: RegistrySimulator) -> None:
    node.client = None
    with pytest.raises(RegistryUnreachable, match="is not on this node, and there is no registry to ask"):
        node.resolve()
    node.client = simulator.client()
    simulator.add(a_manifest())
    candidate, selection = node.choose()
    with pytest.raises(RegistryUnreachable, match="1 blob"):
        ensure_artifacts(candidate, selection, client=None, cache=node.cache)


# Bytes


def a_large_bundle() -> Manifest:
    files = tuple(a_file(f"lib/{number}.so", bytes([number]) * 50_000) for number in range(3))
    return a_manifest(artifacts=(an_artifact(files=files),))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda content: content[:-1], SizeMismatch),
        (lambda content: content + b"!", SizeMismatch),
        (lambda content: content[:-1] + b"!", DigestMismatch),
    ],
    ids=["truncated", "extended", "altered"],
)
def test_wrong_bytes_never_get_their_name(
    node: Node, simulator: RegistrySimulator, change, error: type[AotError]
) -> None:
    manifest = a_large_bundle()
    simulator.add(manifest)
    blob = manifest.blobs[0]
    right = simulator.contents[blob.digest]
    simulator.contents[blob.digest] = change(right)
    with pytest.raises(error):
        node.fetch()
    assert node.cache.path_of(blob.digest) is None
    simulator.contents[blob.digest] = right
    assert len(node.fetch()) == 3


def test_a_cut_connection_is_resumed(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_large_bundle())
    simulator.cut_after(20_000, times=3)
    paths = node.fetch()
    assert {path.read_bytes()[:1] for path in paths.values()} == {b"\0", b"\1", b"\2"}


def test_a_registry_that_goes_in_the_middle_of_a_pull_loses_nothing(node: Node, simulator: RegistrySimulator) -> None:
    simulator.add(a_large_bundle())
    candidate, selection = node.choose()
    simulator.cut_after(1_000, times=100)
    with pytest.raises(RegistryUnreachable):
        ensure_artifacts(candidate, selection, client=simulator.client(), cache=node.cache)
    assert list((node.cache.root / "incoming").iterdir()) == []
    simulator._cuts.clear()
    assert len(node.fetch()) == 3


def test_a_full_disk_is_told_and_leaves_no_half_file(
    node: Node, simulator: RegistrySimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_large_bundle())
    candidate, selection = node.choose()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(LocalStorageFull, match="No space left"):
        patched.setattr(Incoming, "finish", full)
        ensure_artifacts(candidate, selection, client=simulator.client(), cache=node.cache)
    assert list((node.cache.root / "incoming").iterdir()) == []
    assert len(node.fetch()) == 3


def test_a_damaged_blob_of_the_cache_is_fetched_again(node: Node, simulator: RegistrySimulator) -> None:
    manifest = a_large_bundle()
    simulator.add(manifest)
    path = node.fetch()[manifest.blobs[0].digest]
    path.chmod(0o644)
    path.write_bytes(b"!" * path.stat().st_size)
    assert node.fetch()[manifest.blobs[0].digest].read_bytes() == simulator.contents[manifest.blobs[0].digest]


def test_a_damaged_blob_is_never_handed_out_offline(node: Node, simulator: RegistrySimulator) -> None:
    manifest = a_large_bundle()
    pinned = MINI.pinned_to(simulator.add(manifest))
    path = node.fetch(pinned)[manifest.blobs[0].digest]
    path.chmod(0o644)
    path.write_bytes(b"!" * path.stat().st_size)
    node.client = None
    with pytest.raises(DigestMismatch):
        node.fetch(pinned)


def test_only_the_blobs_of_the_selected_artifacts_are_fetched(node: Node, simulator: RegistrySimulator) -> None:
    fitting, other = a_file("lib/a.so", b"fits"), a_file("lib/b.so", b"does not")
    manifest = a_manifest(
        artifacts=(an_artifact(files=(fitting,)), an_artifact(capability="cuda:sm_90", files=(other,)))
    )
    simulator.add(manifest)
    assert set(node.fetch()) == {fitting.digest}
    assert node.cache.path_of(other.digest) is None
