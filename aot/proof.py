"""What the proof in a manifest lacks: the one rule by which bundles go live. Pure.

The pipeline asks before it uploads, the registry before it signs (design.md, section 4, "Nothing goes live
unqualified"). The worker measured; what is checked here is that it measured everything, and that it all passed.
"""

from collections.abc import Iterator
from statistics import geometric_mean

from aot.schema.artifact import Artifact, Winner
from aot.schema.manifest import Manifest
from aot.schema.recipe import Randomness, Route
from aot.schema.report import Qualification

CHECKED = "checked"
PTRACE = "ptrace"
PERTURBED, SECOND_CALL = "perturbed", "second call"
MOST_NAMED = 5


def faults_of(manifest: Manifest) -> tuple[str, ...]:
    """Return everything that is missing from the manifest's proof or did not pass; nothing where it may go live."""
    return tuple(
        (
            *_of_place(manifest),
            *_of_start(manifest),
            *_of_calls(manifest.qualification),
            *_of_coverage(manifest),
            *_of_speed(manifest),
        )
    )


def _of_place(manifest: Manifest) -> Iterator[str]:
    proof = manifest.qualification
    if (proof.profile, proof.torch) != (manifest.profile.name, manifest.profile.toolchain.torch):
        yield f"it was proven on {proof.profile or 'no profile'} with torch {proof.torch or 'unknown'}"


def _of_start(manifest: Manifest) -> Iterator[str]:
    start = manifest.qualification.start
    if start is None:
        yield "no fresh process has loaded it"
        return
    if start.processes:
        yield f"a fresh process started others: {', '.join(start.processes[:MOST_NAMED])}"
    if start.counted_by != PTRACE:
        # Polling sees only what lives for a tenth of a second: seeing none proves nothing.
        yield f"the processes of a fresh start were counted by {start.counted_by or 'nobody'}, wanted {PTRACE}"
    # The other routes load through the compiler's own cache code.
    if start.compiler_modules and all(found.route is Route.PACKAGE for found in manifest.artifacts):
        yield f"a fresh process imported the compiler: {', '.join(start.compiler_modules[:MOST_NAMED])}"


def _of_calls(proof: Qualification) -> Iterator[str]:
    if proof.recompiles:
        yield f"it compiled again {proof.recompiles} times"
    for agreement in proof.agreements:
        if not agreement.agrees:
            yield (
                f"artifact {agreement.artifact} at {agreement.point} differs from {agreement.reference} by "
                f"{agreement.max_error:.3g}, eager by {agreement.eager_error:.3g}"
            )


def _of_coverage(manifest: Manifest) -> Iterator[str]:
    """Yield what was not measured of each artifact; a program that draws random numbers cannot be compared."""
    proof = manifest.qualification
    if proof.numerics != CHECKED:
        if manifest.spec.recipe.random is not Randomness.UNCHECKED:
            yield f"its numerics are {proof.numerics}, which the recipe does not allow"
        return
    for index, artifact in enumerate(manifest.artifacts):
        own = [agreement for agreement in proof.agreements if agreement.artifact == index]
        if not own:
            yield f"artifact {index} was not compared with eager"
        elif not manifest.frozen:
            if all(agreement.weights != PERTURBED for agreement in own):
                yield f"artifact {index} was not compared under {PERTURBED} weights"
            if all(agreement.variant != SECOND_CALL for agreement in own):
                yield f"artifact {index} was not compared in a {SECOND_CALL}"
        if not artifact.speeds:
            yield f"artifact {index} was not measured against eager's speed"


def _of_speed(manifest: Manifest) -> Iterator[str]:
    for index, artifact in enumerate(manifest.artifacts):
        if any(speed.eager.p50_us <= 0 or speed.compiled.p50_us <= 0 for speed in artifact.speeds):
            yield f"artifact {index} has a speed that cannot be"
        elif manifest.spec.recipe.require_faster and not _is_faster(artifact):
            name = artifact.region or "the whole program"
            measured = "; ".join(f"{_spell(speed.point)}: {speed.ratio:.2f} x eager" for speed in artifact.speeds)
            yield f"the recipe requires it to be faster than eager, and {name} is not: {measured or 'not measured'}"


def _is_faster(artifact: Artifact) -> bool:
    """Faster: by the geometric mean over the measured points, and beaten beyond noise at none of them."""
    ratios = [speed.ratio for speed in artifact.speeds]
    lost = artifact.winner is Winner.EAGER or any(speed.winner is Winner.EAGER for speed in artifact.speeds)
    return bool(ratios) and not lost and geometric_mean(ratios) < 1


def _spell(point: dict[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in point.items()) or "the example"
