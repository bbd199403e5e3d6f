"""Proven bundles whose kernels are known: which of them another card's code can be made of, and their bytes.

The first half of `aot.pipeline.other_card`. Only what a registry has signed comes in here (`aot.runtime.fetch`), so
nothing is read of a bundle that nobody has proven.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.cache import LocalCache
from aot.client import RegistryClient
from aot.errors import AotError, InvalidInput, InvalidProfile, LoadFailed
from aot.facts.targets import FATBIN
from aot.pipeline.recheck import CUBINS, LIBRARY
from aot.rules.required import COOPERATIVE_FACT
from aot.runtime.fetch import Candidate, ensure_blobs
from aot.schema.artifact import Artifact
from aot.schema.devices import CARDS, card_profile, is_of_catalogue
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Name
from aot.schema.profile import Profile, Toolchain
from aot.schema.recipe import Route
from aot.schema.spec import FactorySource, ProgramSource
from aot.schema.wire.workers import ProfileView


@dataclass(frozen=True)
class Known:
    """A proven bundle on this disk: every blob of its artifacts by digest, what they keep included."""

    digest: Digest
    manifest: Manifest
    paths: Mapping[Digest, Path]


def find_card(name: str, views: Sequence[ProfileView], toolchain: Toolchain) -> Profile:
    """Return the profile named `name`: as the registry lists it, else that of a card of the catalogue.

    Of a card that no worker is, it has `toolchain`. Raises InvalidProfile naming those there are.
    """
    known = card_profile(name, toolchain)
    names = (name, known.name if known else name)
    listed = {view.profile.name: view for view in views}
    view = next((listed[Name(one)] for one in names if Name(one) in listed), None)
    # What only a push made known has the toolchain of that push, and no worker's.
    if view is not None and (view.held or not is_of_catalogue(view.profile)):
        return view.profile
    if known is not None:
        return known
    cards = ", ".join(card for card, found in CARDS.items() if found.capability.family == "cuda")
    raise InvalidProfile(
        f"{name} is no profile that the registry lists ({', '.join(listed) or 'none'}), and no known card",
        hint=f"a card of {cards}",
    )


def choose_known(candidates: Sequence[Candidate], profile: Profile) -> Candidate:
    """Return the bundle to start from: of those that can be, one that was tuned, and for the same architecture.

    Raises InvalidProfile where one of them was built on such a card; the reason why the only one cannot be;
    InvalidInput with all reasons where there are several.
    """
    if (better := next((one for one in candidates if is_built_on(one.manifest, profile)), None)) is not None:
        name = f"{better.manifest.namespace}/{better.manifest.name}"
        raise InvalidProfile(
            f"{name} has a bundle that was built on {profile.name}, {better.digest.short}: none without it is better",
            hint=f"use that one; to start from another all the same, name its digest: --from {name}@sha256:...",
        )
    reasons = {one.digest: why_not(one.manifest, profile) for one in candidates}
    fitting = [one for one in candidates if reasons[one.digest] is None]
    if fitting:
        # What was made without its card has its configurations from where that was tuned.
        tuned = [one for one in fitting if not is_untuned(one.manifest)] or fitting
        same = [one for one in tuned if one.manifest.profile.capability == profile.capability]
        return (same or tuned)[0]
    errors = [error for error in reasons.values() if error is not None]
    if len(errors) == 1:
        raise errors[0]
    # The reasons of bundles for a card come first: they are those that a next step helps against.
    ranked = sorted(candidates, key=lambda one: one.manifest.profile.capability.family != "cuda")
    told = [f"{one.manifest.profile.name}: {error.message}" for one in ranked if (error := reasons[one.digest])]
    first = reasons[ranked[0].digest]
    raise InvalidInput(
        f"code for {profile.name} can be made of no bundle of it: {'; '.join(told)}",
        hint=first.hint if first else "",
    )


def is_untuned(manifest: Manifest) -> bool:
    """Whether any of its code was made without the card that it is for."""
    return any(artifact.tuned is False for artifact in manifest.artifacts)


def is_built_on(manifest: Manifest, profile: Profile) -> bool:
    """Whether the bundle is for `profile`, with its toolchain, and was made with that card."""
    origin = manifest.profile
    same = origin.name == profile.name and _differing(origin.toolchain, profile.toolchain) is None
    return same and not is_untuned(manifest)


def why_not(manifest: Manifest, profile: Profile) -> AotError | None:
    """Return why code for `profile` cannot be made of this bundle; None where it can, as far as its manifest tells."""
    origin = manifest.profile
    on_worker = f"build it on a worker of {profile.name}, from its source"
    if not isinstance(manifest.spec.source, FactorySource | ProgramSource):
        return InvalidInput("it is no compiled model", hint="name the bundle of a model with the route package")
    if origin.capability.family != "cuda":
        return InvalidInput(f"it is for {origin.capability}, not for a card of NVIDIA's", hint=on_worker)
    if profile.capability.family != "cuda":
        return InvalidProfile(
            f"its wrapper calls CUDA's driver, which no {profile.capability} device has", hint=on_worker
        )
    if profile.name == origin.name:
        return InvalidProfile(f"it is for {profile.name} already", hint=f"use {manifest.namespace}/{manifest.name}")
    if differing := _differing(origin.toolchain, profile.toolchain):
        return InvalidProfile(
            f"its wrapper was built with {differing[0]}, {profile.name} has {differing[1]}",
            hint=f"build it once on a worker with the toolchain of {profile.name}, and start from that bundle",
        )
    for artifact in manifest.artifacts:
        if found := _misfit(artifact):
            return InvalidInput(found[0], hint=found[1] or on_worker)
    return None


def fetch_known(candidate: Candidate, *, client: RegistryClient | None, cache: LocalCache) -> dict[Digest, Path]:
    """Return where every blob of the bundle's artifacts lies in the cache, hashed now.

    To be used while the caller holds them (`cache.hold`). Raises what fetching raises, and LoadFailed.
    """
    wanted = {file.digest for artifact in candidate.manifest.artifacts for file in artifact.all_files}
    blobs = [blob for blob in candidate.manifest.blobs if blob.digest in wanted]
    ensure_blobs(candidate, blobs, client=client, cache=cache)
    paths = {blob.digest: cache.verified_path(blob.digest) for blob in blobs}
    found = {digest: path for digest, path in paths.items() if path is not None}
    if len(found) != len(blobs):
        raise LoadFailed("a blob left the cache while it was needed", hint="raise AOT_CACHE_BYTES")
    return found


def _misfit(artifact: Artifact) -> tuple[str, str] | None:
    """Return what is in the way of this artifact, and what to do; an empty hint means: a worker with the card."""
    cubins = [file.path for file in artifact.files if file.path.startswith(CUBINS)]
    libraries = [file.path for file in artifact.files if file.path.startswith(LIBRARY)]
    machine = artifact.elf.machine if artifact.elf else "an unknown machine"
    if artifact.route is not Route.PACKAGE:
        return f"it is of the route {artifact.route}, whose code belongs to one card", ""
    if any(path.endswith(FATBIN) for path in cubins):
        return "its kernels are fat binaries (emit_multi_arch_kernel), of which nothing is kept", ""
    if COOPERATIVE_FACT in artifact.facts:
        return "all blocks of its cooperative kernels wait for each other, and their grids were sized for its card", ""
    if len(libraries) != 1:
        return f"it has kernels in libraries of their own: {', '.join(libraries)}", ""
    if any(one.path.startswith(LIBRARY) and one.capability.family != "cpu" for one in artifact.binaries):
        return "its library holds kernels that nvcc compiled for its card (CUTLASS), of which nothing is kept", ""
    if machine != platform.machine():
        return f"its wrapper is for {machine}, this machine is {platform.machine()}", f"do this on {machine}"
    if cubins and artifact.kept is None:
        hint = "build it once more on a worker that has its card, with this version, and start from that bundle"
        return "it keeps nothing of its kernels: an older version built it, or its report says why", hint
    return None


def _differing(found: Toolchain, wanted: Toolchain) -> tuple[str, str] | None:
    """Return the first part that differs, as both have it. Of Python, releases of one minor version are one."""
    for part in ("torch", "triton", "cuda", "compiler", "libc"):
        one, other = getattr(found, part), getattr(wanted, part)
        if one != other:
            name = "" if part in ("compiler", "libc") else f"{part} "
            return f"{name}{one or 'none'}", f"{name}{other or 'none'}"
    one, other = (".".join(text.python.split(".")[:2]) for text in (found, wanted))
    return None if one == other else (f"Python {one}", f"Python {other}")
