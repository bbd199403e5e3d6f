"""From a name to verified bytes on this node: resolve, verify, select, fetch.

The first half of the pod's flow (design.md, section 5), shared by `aot.pull`, `aot.load` and `aot.explain`. Two
requests at most: one for the manifests, one for links; only the first on a node that holds nothing of it, where the
blobs are few; none when the node's cache holds what a lock pins.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from aot.errors import (
    AotError,
    BundleNotFound,
    BundleWithdrawn,
    DigestMismatch,
    InvalidInput,
    LoadFailed,
    MalformedDocument,
    NotARegistry,
    NotFound,
    RegistryUnreachable,
    SignatureRejected,
    Unavailable,
)
from aot.schema.artifact import Artifact
from aot.schema.decision import Refusal, Selection
from aot.schema.digest import BuildKey, Digest
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Reference
from aot.schema.spec import Blob

if TYPE_CHECKING:
    from aot.cache import LocalCache
    from aot.client import RegistryClient
    from aot.runtime.late_client import LateClient
    from aot.schema.lock import Lock
    from aot.schema.wire.blobs import Link
    from aot.schema.wire.signed import SignedManifest
    from aot.trust import TrustedKeys

    Registry = RegistryClient | LateClient

log = logging.getLogger("aot")


class Candidate(Struct, frozen=True):
    """One bundle whose manifest has been verified.

    `cached`: it came from this node's cache. `links`: those that came with the answer, to blobs of its bundles.
    """

    digest: Digest
    manifest: Manifest
    signed: "SignedManifest"
    cached: bool = False
    links: tuple["Link", ...] = ()

    def digests(self, selection: Selection) -> tuple[Digest, ...]:
        """Of every blob that the selected artifacts need."""
        chosen = [self.manifest.artifacts[index] for index in selection.artifacts]
        return tuple(blob.digest for blob in blobs_of(chosen))


class Resolved(Struct, frozen=True):
    """What a reference stands for: what a lock or its digest pinned, or what the registry said of its tag.

    `stale`: said by the node's cache, because the registry could not be asked. `refusals`: the bundles that are not
    among the candidates because no trusted key has signed them, or because this version cannot read their manifest.
    """

    reference: Reference
    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()
    pinned: bool = False
    stale: bool = False

    @property
    def bundles(self) -> tuple[tuple[Digest, Manifest], ...]:
        return tuple((candidate.digest, candidate.manifest) for candidate in self.candidates)

    def candidate(self, digest: Digest) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.digest == digest)


def resolve(
    reference: Reference,
    *,
    client: "Registry | None",
    cache: "LocalCache",
    trusted: "TrustedKeys",
    lock: "Lock | None" = None,
    to_fetch: bool = True,
) -> Resolved:
    """Return the verified bundles of `reference`: those that `lock` pins, else what the registry says now.

    `to_fetch`: links to the blobs may come along where this node holds nothing of it yet; without, none are asked for.
    A bundle that cannot be verified or read does not take the others along; it is raised where none is left.
    Raises InvalidInput for a reference that the lock does not pin, NotFound, BundleWithdrawn, SignatureRejected,
    MalformedDocument, and Unavailable when neither registry nor cache can tell.
    """
    verification = _Verification(reference, trusted)
    pins = _pins(reference, lock)
    if pins is not None:
        found = _resolve_pins(reference, pins, verification, client=client, cache=cache, to_fetch=to_fetch)
        return Resolved(reference, found, verification.refusals(), pinned=True)
    links: tuple[Link, ...] = ()
    try:
        answered, links = _ask(reference, client, links=to_fetch and cache.recall_tag(reference) is None)
        stale = False
    except (Unavailable, NotARegistry) as error:
        answered, stale = _recall(reference, cache), True
        if not answered:
            raise
        why = "no registry may be asked" if client is None else error.message
        log.warning("aot uses what %s was when it was last resolved: %s", reference, why)
    candidates = [verification.candidate(one, cached=stale, links=links) for one in answered]
    remaining = tuple(one for one in candidates if one is not None)
    if not remaining:
        raise verification.first
    return Resolved(reference, remaining, verification.refusals(), stale=stale)


def remember(resolved: Resolved, cache: "LocalCache") -> None:
    """Make true that the node can resolve this again without the registry. Raises LocalStorageFull, InvalidConfig.

    After verification only: what lies in the cache would otherwise be refused at every start.
    """
    for one in resolved.candidates:
        if not one.cached and cache.get_manifest(one.digest) != one.signed:
            cache.put_manifest(one.signed)
    if not resolved.pinned and not resolved.stale:
        cache.remember_tag(resolved.reference, tuple(one.digest for one in resolved.candidates))


def ensure_artifacts(
    candidate: Candidate,
    selection: Selection,
    *,
    client: "Registry | None",
    cache: "LocalCache",
) -> None:
    """Make true that every blob of the selected artifacts lies in the cache, whole. One request where any is missing.

    Raises Unavailable, IntegrityFailed, LocalStorageFull.
    """
    chosen = [candidate.manifest.artifacts[index] for index in selection.artifacts]
    ensure_blobs(candidate, blobs_of(chosen), client=client, cache=cache)


def ensure_verified(
    candidate: Candidate,
    selection: Selection,
    *,
    client: "Registry | None",
    cache: "LocalCache",
) -> dict[Digest, Path]:
    """Return the place of every blob that is about to be mapped, hashed now. What is damaged is fetched once more.

    Raises what `ensure_artifacts` does, and LoadFailed when a blob leaves the cache meanwhile.
    """
    ensure_artifacts(candidate, selection, client=client, cache=cache)
    paths, damage = _hash_all(candidate.digests(selection), cache)
    if damage is not None and client is not None:
        log.warning("aot fetches damaged blobs again: %s", damage.message)
        ensure_artifacts(candidate, selection, client=client, cache=cache)
        paths, damage = _hash_all(candidate.digests(selection), cache)
    if damage is not None:
        raise damage
    return paths


def ensure_blobs(
    candidate: Candidate, wanted: Iterable[Blob], *, client: "Registry | None", cache: "LocalCache"
) -> None:
    """Make true that these blobs of the bundle lie in the cache. Raises as `ensure_artifacts` does."""
    missing = cache.missing(wanted)
    if not missing:
        return
    if client is None:
        raise _offline(f"{len(missing)} blob(s) of {candidate.digest.short} are not on this node")
    links = candidate.links
    if {blob.digest for blob in missing} - {link.digest for link in links}:
        links = client.get_download_links(candidate.digest, [blob.digest for blob in missing])
    client.fetch_blobs(missing, links, cache, bundle=candidate.digest)


def blobs_of(artifacts: Sequence[Artifact]) -> tuple[Blob, ...]:
    """The distinct blobs of these artifacts."""
    sizes = {file.digest: file.size_bytes for artifact in artifacts for file in artifact.files}
    return tuple(Blob(digest=digest, size_bytes=sizes[digest]) for digest in sorted(sizes))


def _hash_all(
    digests: Sequence[Digest], cache: "LocalCache"
) -> tuple[dict[Digest, Path], DigestMismatch | LoadFailed | None]:
    """The blobs that are whole, and the first damage; whatever is damaged has left the cache."""
    paths: dict[Digest, Path] = {}
    damage: DigestMismatch | LoadFailed | None = None
    for digest in digests:
        try:
            path = cache.verified_path(digest)
        except DigestMismatch as error:
            damage = damage or error
            continue
        if path is None:
            message = f"{digest.short} left the cache while it was needed"
            damage = damage or LoadFailed(message, hint="raise AOT_CACHE_BYTES")
        else:
            paths[digest] = path
    return paths, damage


def _pins(reference: Reference, lock: "Lock | None") -> dict[Digest, BuildKey | None] | None:
    """The digests that the reference may only stand for, with the build keys a lock demands; None: whatever is live."""
    if lock is not None and (entries := lock.entries_for(reference)):
        return {entry.bundle: entry.build_key for entry in entries}
    if reference.digest is not None:
        return {reference.digest: None}
    if lock is None:
        return None
    known = ", ".join(sorted({entry.reference for entry in lock.entries})) or "nothing"
    raise InvalidInput(
        f"the lock does not pin {reference}; it pins {known}",
        hint="name what it pins, or add the model to aot.toml (its tags are its names) and run `aot ensure`",
    )


def _resolve_pins(
    reference: Reference,
    pins: Mapping[Digest, BuildKey | None],
    verification: "_Verification",
    *,
    client: "Registry | None",
    cache: "LocalCache",
    to_fetch: bool,
) -> tuple[Candidate, ...]:
    """Every pinned bundle: those of the cache with no request, the others with one."""
    found: dict[Digest, Candidate] = {}
    for digest, key in pins.items():
        signed = cache.get_manifest(digest)
        if signed is not None and (candidate := verification.candidate(signed, build_key=key, cached=True)):
            found[digest] = candidate
    missing = [digest for digest in pins if digest not in found and not verification.is_final(digest)]
    if missing:
        try:
            answered, links = _ask(reference, client, pins=missing, links=to_fetch)
            for signed in answered:
                if candidate := verification.candidate(signed, build_key=pins[signed.digest], links=links):
                    found[signed.digest] = candidate
        except (Unavailable, NotARegistry, NotFound, BundleWithdrawn) as error:
            if verification.refused and not found:
                raise verification.first from error
            if not found:
                raise
            log.warning("aot goes on with %d of %d pinned bundles: %s", len(found), len(pins), error.message)
    if not found:
        raise verification.first
    return tuple(found[digest] for digest in pins if digest in found)


def _ask(
    reference: Reference, client: "Registry | None", *, pins: Sequence[Digest] = (), links: bool
) -> "tuple[tuple[SignedManifest, ...], tuple[Link, ...]]":
    """What the registry says, in one request: the live bundles of the tag, or those pinned; with `links`, those too."""
    if client is None:
        raise _offline(f"{reference} is not on this node")
    if links:
        reply = client.resolve_with_links(reference, pins=pins)
        answered, linked = reply.bundles, reply.links
    else:
        answered, linked = client.resolve(reference, pins=pins), ()
    bundles = tuple(one for one in answered if one.digest in pins) if pins else answered
    if answered and not bundles:
        raise NotFound(f"the registry answered with other bundles than {pins[0]}", hint="check AOT_URL")
    if not bundles:
        raise BundleNotFound(f"{reference} names no live bundle", hint="`aot ls` shows what is published")
    return bundles, linked


def _recall(reference: Reference, cache: "LocalCache") -> "tuple[SignedManifest, ...]":
    remembered = cache.recall_tag(reference)
    known = [cache.get_manifest(digest) for digest in (remembered.bundles if remembered else ())]
    return tuple(one for one in known if one is not None)


class _Verification:
    """Verifies the bundles of one reference, and keeps which were refused and why."""

    def __init__(self, reference: Reference, trusted: "TrustedKeys") -> None:
        self._reference = reference
        self._trusted = trusted
        self.refused: dict[Digest, AotError] = {}

    def candidate(
        self,
        signed: "SignedManifest",
        *,
        build_key: BuildKey | None = None,
        cached: bool = False,
        links: "tuple[Link, ...]" = (),
    ) -> Candidate | None:
        """Return the bundle as a candidate, or None where it is refused."""
        try:
            manifest = verify_signed(signed, self._reference, self._trusted, build_key=build_key)
        except (SignatureRejected, MalformedDocument) as error:
            self.refused[signed.digest] = error
            return None
        self.refused.pop(signed.digest, None)
        return Candidate(signed.digest, manifest, signed, cached, links)

    def is_final(self, digest: Digest) -> bool:
        """Say that asking again is of no use: the bytes stay what they are, though an envelope may get another key."""
        return isinstance(self.refused.get(digest), MalformedDocument)

    @property
    def first(self) -> AotError:
        return next(iter(self.refused.values()))

    def refusals(self) -> tuple[Refusal, ...]:
        # Where no bundle is left the first refusal is raised, and need not be told twice.
        for digest, error in self.refused.items():
            log.warning("aot does not use bundle %s of %s: %s", digest, self._reference, error.message)
        return tuple(Refusal(bundle=digest, reason=error.message) for digest, error in self.refused.items())


def verify_signed(
    signed: "SignedManifest", reference: Reference, trusted: "TrustedKeys", *, build_key: BuildKey | None = None
) -> Manifest:
    """Verify the bytes as they came: digest, signature, and that the statement is about what was asked for.

    Raises SignatureRejected, MalformedDocument.
    """
    from aot.trust import verify

    content = signed.manifest.encode()
    if Digest.of(content) != signed.digest:
        raise SignatureRejected(
            f"the manifest's bytes are not {signed.digest}",
            hint="the registry or its storage is damaged; do not use this bundle",
        )
    verify(
        signed.envelope,
        trusted,
        manifest=signed.digest,
        namespace=reference.namespace,
        name=reference.name,
        build_key=build_key,
    )
    manifest = decode_manifest(content)
    if (manifest.namespace, manifest.name) != (reference.namespace, reference.name):
        raise SignatureRejected(
            f"the manifest is of {manifest.namespace}/{manifest.name}, asked for {reference}",
            hint="the registry answered with another model's bundle; do not use it",
        )
    return manifest


def _offline(message: str) -> Unavailable:
    return RegistryUnreachable(
        f"{message}, and there is no registry to ask",
        hint="set AOT_URL and AOT_TOKEN and leave AOT_OFFLINE unset, or pull before going offline",
    )
