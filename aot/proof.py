"""What the proof in a manifest lacks: the one rule by which bundles go live. Pure.

The pipeline asks before it uploads, the registry before it signs (design.md, section 4, "Nothing goes live
unqualified"). The worker measured; what is checked here is that it measured everything, and that it all passed.
"""

import re
from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from aot.errors import InvalidCapability
from aot.schema.artifact import Artifact, CodeFacts, Winner
from aot.schema.capability import Capability
from aot.schema.guard import RELATIONS, InputGuard
from aot.schema.manifest import Manifest
from aot.schema.recipe import Randomness, Route
from aot.schema.report import Emulation, Qualification, StartProof
from aot.schema.spec import BytecodeSource, CommandSource

CHECKED = "checked"
REBUILT = "rebuilt: equal bytes"  # of bytecode: somebody else has compiled the same sources again
RECAPTURED = "captured again"  # of caches: a worker's own run of the command wrote them, and a second one used them
PTRACE = "ptrace"
PERTURBED, SECOND_CALL, REPLAY = "perturbed", "second call", "replay"
MOST_NAMED = 5
# A size in the text of an expression guard.
_SIZE = re.compile(r"\bs\[(\d{1,6})\]\[(\d{1,6})\]")


def faults_of(manifest: Manifest) -> tuple[str, ...]:
    """Return everything that is missing from the manifest's proof or did not pass; nothing where it may go live."""
    if isinstance(manifest.spec.source, BytecodeSource):
        return (*_of_place(manifest), *_of_bytecode(manifest))
    if isinstance(manifest.spec.source, CommandSource):
        return (*_of_place(manifest), *_of_caches(manifest))
    return tuple(
        (
            *_of_place(manifest),
            *_of_start(manifest, manifest.qualification.start),
            *_of_calls(manifest.qualification),
            *_of_emulation(manifest),
            *_of_coverage(manifest),
            *_of_speed(manifest),
        )
    )


def _of_place(manifest: Manifest) -> Iterator[str]:
    proof = manifest.qualification
    if (proof.profile, proof.torch) != (manifest.profile.name, manifest.profile.toolchain.torch):
        yield f"it was proven on {proof.profile or 'no profile'} with torch {proof.torch or 'unknown'}"


def _of_bytecode(manifest: Manifest) -> Iterator[str]:
    """Bytecode computes nothing that could be compared with eager: it is right when its source gives these bytes."""
    if manifest.qualification.numerics != REBUILT:
        yield "nobody has compiled its sources again and found the same bytes"


def _of_caches(manifest: Manifest) -> Iterator[str]:
    """Entries of a cache are what a compiler wrote while the command ran: right when they were not somebody else's."""
    proof = manifest.qualification
    if proof.numerics != RECAPTURED:
        yield "no worker has run the command and written its entries itself"
    if proof.recompiles:
        yield f"a second run of the command compiled {proof.recompiles} graphs again"


def _of_start(manifest: Manifest, start: StartProof | None) -> Iterator[str]:
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


def _of_emulation(manifest: Manifest) -> Iterator[str]:
    """Yield what an emulated proof lacks: calls of each artifact, under perturbed weights too unless it is frozen.

    The ends of coverages and second calls are the native proof's: they go wrong in code, which is the same there.
    Without emulation, yield what a host that is not of the profile's level leaves open.
    """
    proof, wanted = manifest.qualification, manifest.profile.capability
    emulation = proof.emulation
    if emulation is None:
        yield from _of_host(manifest)
        return
    where = f"on an emulated CPU of {emulation.cpu}, "
    if emulation.cpu != wanted:
        yield f"it was proven {where}wanted {wanted}"
    found = (*_of_start(manifest, emulation.start), *_of_calls(emulation))
    yield from (f"{where}{fault}" for fault in found)
    if proof.numerics != CHECKED:
        return
    for index in range(len(manifest.artifacts)):
        if all(agreement.artifact != index for agreement in emulation.agreements):
            yield f"{where}artifact {index} was not compared with eager"
        elif not manifest.frozen and all(
            (agreement.artifact, agreement.weights) != (index, PERTURBED) for agreement in emulation.agreements
        ):
            yield f"{where}artifact {index} was not compared under {PERTURBED} weights"


def _of_host(manifest: Manifest) -> Iterator[str]:
    """Yield why a proof on the host alone says nothing of the profile's level.

    A host with more than the level runs what a CPU of it does not. Then the instructions stand for the run, and must
    have been read, all of them.
    """
    proof, wanted = manifest.qualification, manifest.profile.capability
    host = proof.host_cpu
    if wanted.family != "cpu" or host == wanted:
        return
    if host is None and not proof.not_run:
        return  # of 0.1.0, which recorded no host; proofs of today always say which, or why nothing ran
    if host is None:
        yield f"it was proven on a CPU that was not observed, wanted {wanted}"
    elif not proof.not_run:
        yield f"it was proven on a CPU of {host} alone, and nothing says why not on one of {wanted}"
    elif not host.runs(wanted):
        yield f"it was proven on a CPU of {host}, which does not run all code for {wanted}"
    else:
        for index, artifact in enumerate(manifest.artifacts):
            if fault := _unread(artifact.code, wanted):
                yield f"it was proven on a CPU of {host} alone, and the code of artifact {index} {fault}"


def _unread(code: CodeFacts | None, wanted: Capability) -> str | None:
    """Return why the instructions that were read do not show that a CPU of `wanted` runs them."""
    if code is None:
        return "was not read"
    if code.unread_bytes:
        return f"has {code.unread_bytes} bytes that were not read"
    try:
        level = Capability.parse(f"cpu:{code.level}")
    except InvalidCapability:
        return f"needs {code.level}, which is not known"
    return None if wanted.covers(level) else f"needs {level}, wanted {wanted}"


def _of_calls(proof: Qualification | Emulation) -> Iterator[str]:
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
        for end in _untried_ends(artifact, [agreement.point for agreement in own]) if own else ():
            yield f"artifact {index} was not compared with eager at {end}, where its coverage ends"
        if not artifact.speeds:
            yield f"artifact {index} was not measured against eager's speed"
        replayed = [agreement.point for agreement in own if agreement.variant == REPLAY]
        for speed in artifact.speeds:
            if speed.winner is Winner.GRAPHS and speed.point not in replayed:
                yield f"artifact {index} is to run as a CUDA graph at {_spell(speed.point)}, and no replay was compared"


def _untried_ends(artifact: Artifact, points: Sequence[dict[str, int]]) -> Iterator[str]:
    """Yield each end of each range at which there was no call: what goes wrong goes wrong at the ends.

    Where a guard ties a dimension to others or to a step, an end of it may lie outside of the coverage, and only the
    program knows: then two sizes of that dimension stand for its ends.
    """
    tied = {name for guard in artifact.input_guards for name in _tied_names(guard, artifact)}
    for dimension in artifact.coverage.dimensions:
        tried = {point[dimension.name] for point in points if dimension.name in point}
        if dimension.name in tied and len(tried) >= min(2, len(dimension.ends)):
            continue
        for end in dimension.ends:
            if end not in tried:
                yield f"{dimension.name} {end}"


def _tied_names(guard: InputGuard, artifact: Artifact) -> frozenset[int | str | None]:
    """Return the dimensions of which the guard says more than their names and steps do."""
    if guard.kind not in RELATIONS:
        return frozenset()
    name = _size_at(artifact, guard.input, guard.dim)
    if guard.kind == "equal" and guard.other is not None:
        both = frozenset((name, _size_at(artifact, *guard.other)))
        return both if len(both) > 1 else frozenset()
    if guard.kind == "divisible" and guard.low:
        steps = [one.multiple_of for one in artifact.coverage.dimensions if one.name == name]
        return frozenset() if any(step % guard.low == 0 for step in steps) else frozenset((name,))
    places = _SIZE.findall(guard.value or "")
    return frozenset(_size_at(artifact, int(index), int(dim)) for index, dim in places)


def _size_at(artifact: Artifact, index: int | None, dim: int | None) -> int | str | None:
    if index is None or dim is None or not 0 <= index < len(artifact.inputs):
        return None
    shape = artifact.inputs[index].shape
    return shape[dim] if 0 <= dim < len(shape) else None


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
