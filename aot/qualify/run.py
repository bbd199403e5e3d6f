"""`qualify`: the proof that a bundle carries, in fresh processes. Called by aot.pipeline; never imports torch.

    eager start -> start proof -> numerics and speed -> comparison -> the same on an emulated CPU -> Proof

Nothing goes live without it (design.md, section 4). Time, memory, processes and modules are taken from outside; what
the source's own process says of itself (who answered, how fast) is recorded as claimed.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.bundle import StoredBundle, blob_of, read_bundle, write_bundle
from aot.compile.options import host_limits
from aot.environment import observe_node
from aot.errors import MalformedDocument, QualificationFailed
from aot.qualify.canary_files import INPUTS_FILE, OUTPUTS_FILE
from aot.qualify.children import Proving, Watched, read_claim, read_plain
from aot.qualify.crash import with_hint
from aot.qualify.emulated import host_of, needs_emulation, prove_emulated
from aot.qualify.job import CANARY_DIRECTORY, Claim
from aot.qualify.steps import is_checked, judge, prove_pair, run_numerics, start_compiled, start_eagerly
from aot.qualify.verdict import count_misses, list_omissions, with_speeds
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.artifact import Artifact, Winner
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.manifest import Canary
from aot.schema.profile import Profile
from aot.schema.report import Emulation, Qualification, StartProof
from aot.schema.spec import File, Limits, Spec
from aot.source import OpenedSource

UNCHECKED = "unchecked: draws random numbers"
NUMERICS_SECONDS = 120.0
CANARY_BYTES = 8 << 20


@dataclass(frozen=True)
class Proof:
    """What a manifest takes over. `artifacts` have their speeds and winner; `paths` has every file of the canaries."""

    qualification: Qualification
    artifacts: tuple[Artifact, ...]
    canaries: tuple[Canary, ...]
    paths: Mapping[Digest, Path]


def qualify(
    bundle_dir: Path,
    *,
    source: OpenedSource,
    spec: Spec,
    profile: Profile,
    scratch: Path,
    sandbox: Bubblewrap | None,
    limits: Limits | None = None,
    seconds: float = NUMERICS_SECONDS,
    devices: Sequence[Path] = (),
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> Proof:
    """Prove the bundle at `bundle_dir` on this host, below the new directory `scratch`.

    `limits` are each child's (the spec's when left out); `seconds` is what numerics may take before they leave out the
    largest points, which is then noted. `devices` are the cards' device files. A program that draws random numbers
    (`recipe.random` is "unchecked") is proven without the comparison, and marked so.
    Raises QualificationFailed, whose details name the differences, the processes or the signal; CompileStopped.
    """
    started, host = time.monotonic(), host_of(profile, observe_node())
    proving = Proving(
        source=source,
        scratch=scratch.absolute(),
        recipe=spec.recipe,
        profile=profile,
        limits=limits or spec.limits,
        sandbox=sandbox,
        devices=devices,
        held_back=_hold_back(profile, host),
        on_event=on_event,
        should_stop=should_stop,
    )
    stored = _plain_bundle(read_bundle(bundle_dir.absolute()), scratch.absolute())
    start_proof, numerics, claim = _prove_here(proving, stored, seconds=seconds)
    agreements = judge(proving, proving, numerics, claim, stored.manifest.artifacts)
    canaries, paths = _take_canaries(claim, numerics, scratch.absolute() / "canaries")
    below = _prove_below(proving, stored, host=host, seconds=seconds)
    qualification = msgspec.structs.replace(
        _describe(proving, claim, stored.manifest.artifacts),
        start=start_proof,
        agreements=agreements,
        seconds=round(time.monotonic() - started, 3),
        **below,
    )
    return Proof(qualification, with_speeds(stored.manifest.artifacts, claim), canaries, paths)


def _describe(proving: Proving, claim: Claim, artifacts: tuple[Artifact, ...]) -> Qualification:
    """Under what the proof was made, and what it had to leave out."""
    return Qualification(
        recompiles=count_misses(claim.cases),
        numerics="checked" if is_checked(proving) else UNCHECKED,
        profile=proving.profile.name,
        torch=proving.profile.toolchain.torch,
        left_out=list_omissions(claim, artifacts),
    )


def _prove_here(proving: Proving, stored: StoredBundle, *, seconds: float) -> tuple[StartProof, Watched, Claim]:
    """Both proofs on this host's own CPU or card: the start, then numerics and what their child says of itself."""
    try:
        start = _prove_start(proving, stored)
        numerics = run_numerics(proving, stored, seconds=seconds)
        return start, numerics, read_claim(numerics, Claim)
    except QualificationFailed as error:
        compiler = stored.manifest.profile.toolchain.compiler
        raise with_hint(error, stored.manifest.artifacts, compiler=compiler) from error


def _prove_start(proving: Proving, stored: StoredBundle) -> StartProof:
    """Start eagerly, with the bundle, and eagerly again: the first start finds cold file caches, which is no merit."""
    artifacts = stored.manifest.artifacts
    start_eagerly(proving, artifacts, name="eager-cold")
    start = start_compiled(proving, stored)
    return prove_pair(proving, start_eagerly(proving, artifacts), start, artifacts)


def _hold_back(profile: Profile, host: Capability | None) -> Mapping[str, str]:
    """Return what keeps eager to the profile's level: a pod of v3 must not be told that eager's AVX-512 is faster."""
    return host_limits(profile) if needs_emulation(profile, host) else {}


def _prove_below(
    proving: Proving, stored: StoredBundle, *, host: Capability | None, seconds: float
) -> dict[str, object]:
    """Return the fields that say how the proof stands to a CPU of the profile's own level, once it has run here."""
    if proving.profile.capability.family != "cpu":
        return {}
    if not needs_emulation(proving.profile, host):
        return {"host_cpu": host}
    found = prove_emulated(proving, stored, seconds=seconds)
    if isinstance(found, Emulation):
        return {"host_cpu": host, "emulation": found}
    return {"host_cpu": host, "not_run": f"{found.reason}; only the instructions of the code were read"}


def _plain_bundle(stored: StoredBundle, scratch: Path) -> StoredBundle:
    """Return the bundle without what an earlier proof decided, so that compiled code is what is proven."""
    plain = msgspec.structs.replace(
        stored.manifest,
        artifacts=tuple(
            msgspec.structs.replace(artifact, winner=Winner.COMPILED, speeds=())
            for artifact in stored.manifest.artifacts
        ),
        canaries=(),
        qualification=Qualification(),
    )
    if plain == stored.manifest:
        return stored
    files = {blob.digest: stored.blob_path(blob.digest) for blob in plain.blobs}
    return write_bundle(scratch / "bundle", manifest=plain, files=files)


def _take_canaries(claim: Claim, numerics: Watched, into: Path) -> tuple[tuple[Canary, ...], dict[Digest, Path]]:
    """Copy the canaries' files out of the child's directory and hash them."""
    canaries: list[Canary] = []
    paths: dict[Digest, Path] = {}
    for canary in claim.canaries:
        files: list[File] = []
        for name in (INPUTS_FILE, OUTPUTS_FILE):
            where = f"{CANARY_DIRECTORY}/{canary.artifact}/{name}"
            target = into / str(canary.artifact) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read_inside(numerics.out, where))
            blob = blob_of(target)
            paths[blob.digest] = target
            files.append(File(path=where, digest=blob.digest, size_bytes=blob.size_bytes))
        canaries.append(msgspec.structs.replace(canary, expected=tuple(files)))
    return tuple(canaries), paths


def _read_inside(root: Path, where: str) -> bytes:
    path = root / where
    try:
        if Path(os.path.realpath(path)) != Path(os.path.realpath(root)) / where:
            raise MalformedDocument(f"{where} is a link")
        return read_plain(path, CANARY_BYTES)
    except (OSError, MalformedDocument) as error:
        raise QualificationFailed(
            f"the numerics child's canary cannot be read: {error}",
            hint="a source must not write into the proof's directories",
        ) from error
