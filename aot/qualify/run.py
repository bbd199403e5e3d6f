"""`qualify`: the proof that a bundle carries, in fresh processes. Called by aot.pipeline; never imports torch.

    eager start -> start proof -> numerics and speed -> comparison -> Proof

Nothing goes live without it (design.md, section 4). Time, memory, processes and modules are taken from outside; what
the source's own process says of itself (who answered, how fast) is recorded as claimed.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.bundle import StoredBundle, blob_of, read_bundle, write_bundle
from aot.errors import MalformedDocument, QualificationFailed
from aot.qualify.canary_files import INPUTS_FILE, OUTPUTS_FILE
from aot.qualify.children import Proving, Watched, read_claim, read_plain
from aot.qualify.crash import with_hint
from aot.qualify.job import CANARY_DIRECTORY, CASES_DIRECTORY, Claim, Compared, Comparisons, Task
from aot.qualify.start_proof import prove_start
from aot.qualify.verdict import (
    agreements_of,
    check_claim,
    count_misses,
    list_omissions,
    refuse_differences,
    refuse_misses,
    with_speeds,
)
from aot.sandbox import Bubblewrap, OnEvent, ShouldStop
from aot.schema.artifact import Artifact, Winner
from aot.schema.digest import Digest
from aot.schema.manifest import Canary
from aot.schema.profile import Profile
from aot.schema.recipe import Randomness
from aot.schema.report import Agreement, Qualification, StartProof
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
    started = time.monotonic()
    proving = Proving(
        source=source,
        scratch=scratch.absolute(),
        recipe=spec.recipe,
        profile=profile,
        limits=limits or spec.limits,
        sandbox=sandbox,
        devices=devices,
        on_event=on_event,
        should_stop=should_stop,
    )
    stored = _plain_bundle(read_bundle(bundle_dir.absolute()), scratch.absolute())
    artifacts = stored.manifest.artifacts
    try:
        start_proof = _prove_start(proving, stored)
        numerics = _run_numerics(proving, stored, seconds=seconds)
        claim = read_claim(numerics, Claim)
    except QualificationFailed as error:
        raise with_hint(error, artifacts) from error
    agreements = _judge(proving, numerics, claim, artifacts)
    canaries, paths = _take_canaries(claim, numerics, scratch.absolute() / "canaries")
    qualification = Qualification(
        start=start_proof,
        agreements=agreements,
        recompiles=count_misses(claim.cases),
        seconds=round(time.monotonic() - started, 3),
        numerics="checked" if _is_checked(proving) else UNCHECKED,
        profile=profile.name,
        torch=profile.toolchain.torch,
        left_out=list_omissions(claim, artifacts),
    )
    return Proof(qualification, with_speeds(artifacts, claim), canaries, paths)


def _prove_start(proving: Proving, stored: StoredBundle) -> StartProof:
    """Start eagerly, with the bundle, and eagerly again: the first start finds cold file caches, which is no merit."""
    eager = {"readable": proving.shown(), **proving.source_fields()}
    cold = proving.run(Task.EAGER, name="eager-cold", **eager)
    read_claim(cold, Claim)
    start = proving.run(Task.START, **_bundle_fields(proving, stored))
    return prove_start(proving.run(Task.EAGER, **eager), start, profile=proving.profile)


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


def _bundle_fields(proving: Proving, stored: StoredBundle) -> dict[str, object]:
    readable = (*proving.shown(), stored.directory)
    return {**proving.source_fields(), "bundle": str(stored.directory), "readable": readable}


def _is_checked(proving: Proving) -> bool:
    return proving.recipe.random is not Randomness.UNCHECKED


def _run_numerics(proving: Proving, stored: StoredBundle, *, seconds: float) -> Watched:
    return proving.run(
        Task.NUMERICS,
        seconds=min(seconds, proving.limits.wall_seconds / 2),
        checked=_is_checked(proving),
        frozen=proving.recipe.freeze,
        **_bundle_fields(proving, stored),
    )


def _judge(proving: Proving, numerics: Watched, claim: Claim, artifacts: Sequence[Artifact]) -> tuple[Agreement, ...]:
    """Return every agreement. Raises QualificationFailed for a miss within a coverage, or a difference."""
    check_claim(claim, artifacts, checked=_is_checked(proving))
    refuse_misses(claim.cases, artifacts)
    if not _is_checked(proving):
        return ()
    agreements = _compare(proving, numerics, claim, artifacts)
    refuse_differences(agreements, artifacts)
    return agreements


def _compare(proving: Proving, numerics: Watched, claim: Claim, artifacts: Sequence[Artifact]) -> tuple[Agreement, ...]:
    cases = numerics.out / CASES_DIRECTORY
    files = tuple(str(cases / case.file) for case in claim.cases)
    watched = proving.run(Task.COMPARE, readable=(cases,), cases=files)
    compared: dict[str, Compared] = {one.file: one for one in read_claim(watched, Comparisons).compared}
    shutil.rmtree(cases, ignore_errors=True)
    return agreements_of(claim, compared, artifacts)


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
