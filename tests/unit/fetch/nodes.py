"""A node in a test: its cache, and what it fetches for itself."""

from pathlib import Path

from aot.cache import LocalCache
from aot.client import RegistryClient
from aot.runtime.fetch import Candidate, Resolved, ensure_verified, remember, resolve
from aot.schema.decision import Selection
from aot.schema.digest import BuildKey, Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from aot.select import select
from aot.trust import TrustedKeys
from tests.builders import a_manifest, a_profile, a_spec, an_environment, manifest_text
from tests.simulator import RegistrySimulator, a_reference

MINI = a_reference()

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")


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
