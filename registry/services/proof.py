"""What a manifest must be before it is signed: canonical, the answer to this build's question, and proven. Pure.

What a proof must hold is said once, by `aot.proof`: nothing goes live unqualified (design.md, section 4).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from aot.errors import InvalidInput, MalformedDocument, QualificationFailed
from aot.keys import factors_of, key_of
from aot.proof import faults_of
from aot.schema.artifact import Artifact, Winner
from aot.schema.codec import encode
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.recipe import Route
from aot.schema.spec import CommandSource, Spec
from aot.select import REQUIRED_GUARDS

MOST_OF_KERNEL = 1 << 40  # bytes or registers; what is larger no index holds


@dataclass(frozen=True)
class Received:
    """A manifest as it arrived: its digest is over exactly these bytes."""

    manifest: Manifest
    content: bytes
    digest: Digest


def read(text: str) -> Received:
    """Raises MalformedDocument, also for a manifest that is not in the canonical encoding."""
    content = text.encode()
    manifest = decode_manifest(content)
    if encode(manifest) != content:
        raise MalformedDocument(
            "the manifest is not in the canonical encoding",
            hint="send the bytes that `encode_manifest` returns, unchanged",
            details={"path": "$"},
        )
    return Received(manifest, content, Digest.of(content))


def require_sound(manifest: Manifest) -> None:
    """Raises InvalidInput for a manifest that contradicts itself or that every client would reject."""
    problems = list(_contradictions(manifest))
    if problems:
        raise InvalidInput(
            f"the manifest is not sound: {problems[0]}",
            hint="build the bundle again with this version of aot",
            details={"problems": problems},
        )


def require_answer(manifest: Manifest, *, spec: Spec, factors: tuple[Factor, ...], build_key: BuildKey) -> None:
    """Raises InvalidInput unless the manifest answers exactly this question."""
    wrong = [
        name
        for name, found, wanted in (
            ("spec", manifest.spec, spec),
            ("factors", manifest.factors, factors),
            ("build key", manifest.build_key, build_key),
        )
        if found != wanted
    ]
    if wrong:
        raise InvalidInput(
            f"the manifest answers another question: its {', '.join(wrong)} is not that of the build",
            hint="publish with the token of the claim that the bundle was built for",
            details={"differs": wrong},
        )


def require_same_artifacts(manifest: Manifest, pushed: Manifest) -> None:
    """Raises InvalidInput unless only the proof differs: nobody swaps the code while proving it.

    Captured caches are proven by making them once more: what a worker's own compiler wrote takes the place of bytes
    that nobody can judge.
    """
    if isinstance(pushed.spec.source, CommandSource):
        return
    if not is_same_code(manifest, pushed):
        raise InvalidInput(
            "the proven bundle has other artifacts than the pushed one",
            hint="prove the pushed bundle as it is; only speeds, canaries, reports and provenance may differ",
        )


def is_same_code(manifest: Manifest, other: Manifest) -> bool:
    """True where two manifests list the same artifacts of the same program.

    Who built them, when, from which commit and how they were proven may differ: none of it is in the code.
    """
    mine, others = ([_unproven(artifact) for artifact in one.artifacts] for one in (manifest, other))
    return mine == others and manifest.fingerprint == other.fingerprint


def require_proven(manifest: Manifest) -> None:
    """Raises QualificationFailed naming everything that is missing or did not pass."""
    failures = list(faults_of(manifest))
    if failures:
        raise QualificationFailed(
            f"the bundle is not proven: {failures[0]}",
            hint="nothing is published unproven; see the build's log",
            details={"failures": failures},
        )


def _unproven(artifact: Artifact) -> Artifact:
    return msgspec.structs.replace(artifact, speeds=(), winner=Winner.COMPILED)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    spec, profile = manifest.spec, manifest.profile
    if (manifest.namespace, manifest.name, profile.name) != (spec.namespace, spec.name, spec.profile):
        yield "namespace, name or profile are not those of its spec"
    if manifest.factors != factors_of(spec, profile) or manifest.build_key != key_of(manifest.factors):
        yield "the build key is not that of its spec and profile"
    if not manifest.artifacts:
        yield "it has no artifact"
    for index, artifact in enumerate(manifest.artifacts):
        yield from (f"artifact {index}: {problem}" for problem in _flaws(artifact, manifest))
    if len({(file.digest, file.size_bytes) for file in manifest.files}) != len(manifest.blobs):
        yield "a digest is said to have two sizes"
    if any(not 0 <= canary.artifact < len(manifest.artifacts) for canary in manifest.canaries):
        yield "a canary belongs to no artifact"


def _flaws(artifact: Artifact, manifest: Manifest) -> Iterator[str]:
    if artifact.route not in manifest.spec.recipe.routes:
        yield f"its recipe does not allow the route {artifact.route}"
    if not manifest.profile.capability.runs(artifact.capability):
        yield f"it is for {artifact.capability}, which {manifest.profile.capability} does not cover"
    missing = REQUIRED_GUARDS[artifact.route] - {guard.kind for guard in artifact.host_guards}
    if missing:
        yield f"it lacks the host guards {', '.join(sorted(missing))}"
    if not artifact.files:
        yield "it has no file"
    if artifact.tuned and not any(kernel.candidates > 1 and kernel.best_us for kernel in artifact.kernels):
        yield "it claims to be tuned, and no kernel of it says what was measured"
    if artifact.route is Route.KERNEL and (artifact.launch is None or artifact.tuned is None):
        yield "it is a kernel, and says not how it is launched, or not whether it is tuned"
    paths = [file.path for file in artifact.files]
    if len(set(paths)) != len(paths):
        yield "two of its files have the same path"
    yield from _flaws_of_kernels(artifact)


def _flaws_of_kernels(artifact: Artifact) -> Iterator[str]:
    paths = {file.path for file in artifact.files}
    for kernel in artifact.binaries:
        numbers = (
            kernel.size_bytes,
            kernel.registers,
            kernel.scalar_registers,
            kernel.shared_bytes,
            kernel.spill_bytes,
        )
        if kernel.path not in paths:
            yield f"it says that {kernel.path} holds kernels, and has no such file"
        if any(number is not None and not 0 <= number < MOST_OF_KERNEL for number in numbers):
            yield f"its kernel {kernel.name[:80]} has a number that no kernel has"
