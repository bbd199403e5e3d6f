"""Fetch: a published bundle from the registry to a directory of its own, for a look or to carry it elsewhere.

Pods do not come this way: they fetch what fits them into their cache (`aot.runtime.fetch`).
"""

from pathlib import Path

from aot.bundle import StoredBundle, write_bundle
from aot.cache import LocalCache
from aot.client import RegistryClient
from aot.environment import observe_environment
from aot.errors import DigestMismatch, InvalidInput
from aot.runtime.fetch import Candidate, Resolved, ensure_blobs, resolve
from aot.schema.names import Name, Reference
from aot.select import Policy, select
from aot.trust import TrustedKeys


def fetch_bundle(
    client: RegistryClient | None,
    reference: Reference,
    *,
    into: Path,
    cache: LocalCache,
    trusted: TrustedKeys,
    profile: Name | None = None,
) -> StoredBundle:
    """Write the bundle of `reference`, whole and verified, to the new directory `into`.

    Where the reference stands for several bundles, `profile` names one; else the one that fits this host is taken.
    Raises InvalidInput where that leaves none, or where `into` is in use, and what resolving and fetching raise.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InvalidInput(f"{into} exists and is not empty", hint="name a directory that is not there yet")
    candidate = _choose(resolve(reference, client=client, cache=cache, trusted=trusted), profile)
    blobs = candidate.manifest.blobs
    with cache.hold([candidate.digest, *(blob.digest for blob in blobs)]):
        ensure_blobs(candidate, blobs, client=client, cache=cache)
        paths = {blob.digest: path for blob in blobs if (path := cache.path_of(blob.digest)) is not None}
        stored = write_bundle(into, manifest=candidate.manifest, files=paths, envelope=candidate.signed.envelope)
    if stored.digest != candidate.digest:
        raise DigestMismatch(
            f"{into} holds {stored.digest}, the registry's manifest is {candidate.digest}",
            hint="the manifest is not in its canonical form; report it",
        )
    return stored


def _choose(resolved: Resolved, profile: Name | None) -> Candidate:
    if profile is not None:
        named = [one for one in resolved.candidates if one.manifest.profile.name == profile]
    elif len(resolved.candidates) > 1:
        fitting = select(resolved.bundles, observe_environment(), policy=Policy(undecided=True)).bundle
        named = [one for one in resolved.candidates if one.digest == fitting]
    else:
        named = list(resolved.candidates)
    if not named:
        profiles = ", ".join(one.manifest.profile.name for one in resolved.candidates)
        raise InvalidInput(
            f"{resolved.reference} has no bundle for {profile or 'this host'}; its profiles are {profiles}",
            hint="name one of them with --profile",
        )
    return named[0]
