"""What the numerics child claims and the comparing child found, put together: agreements, winners, or a refusal."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from aot.errors import QualificationFailed
from aot.qualify.job import NON_CONTIGUOUS, Case, Claim, Compared, SpeedClaim
from aot.qualify.points import describe_point
from aot.qualify.reference import EAGER
from aot.qualify.winner import winner_over
from aot.schema.artifact import Artifact
from aot.schema.measured import OF_PROOF, Measured, spell_point, write_clocks, write_memory
from aot.schema.report import Agreement
from aot.select import describe_coverage

_FILE = re.compile(r"\d{4}\.safetensors")
MOST_LISTED = 20
MOST_OMISSIONS = 200


def check_claim(claim: Claim, artifacts: Sequence[Artifact], *, checked: bool) -> None:
    """Refuse a claim that does not prove every artifact, or that names files and artifacts that cannot be.

    Raises QualificationFailed.
    """
    indices = set(range(len(artifacts)))
    named = {index for case in claim.cases for index in case.artifacts}
    strange = [case.file for case in claim.cases if checked != bool(_FILE.fullmatch(case.file))]
    unproven = sorted(indices - {index for case in claim.cases if case.variant == "" for index in case.artifacts})
    if strange or named - indices or unproven:
        raise QualificationFailed(
            f"the numerics child's claim is not complete: nothing proves artifact(s) {unproven or sorted(named)}",
            hint="a source must not write into the proof's directories",
            details={"unproven": unproven, "files": strange[:MOST_LISTED]},
        )


def count_misses(cases: Sequence[Case]) -> int:
    """Return how often a call within a coverage was not answered by compiled code alone."""
    return sum(max(case.misses, int(case.compiled == 0)) for case in cases if case.variant != NON_CONTIGUOUS)


# Half-precision results differ among themselves by more than is tolerated of one that is measured.
NO_REFERENCE = (
    "; eager itself was the measure: the module ran neither in float64 nor in float32, for want of memory (the limit "
    "memory_bytes, or the card's) or for types that its code names"
)


def agreements_of(
    claim: Claim, compared: Mapping[str, Compared], artifacts: Sequence[Artifact]
) -> tuple[Agreement, ...]:
    """Return one agreement for each case and artifact. What was left out is noted where it belongs, or at the last."""
    notes = _notes_of(claim)
    found = []
    for case in claim.cases:
        verdict = compared.get(case.file) or Compared(file=case.file, agrees=False, reason="not compared")
        reason = "" if verdict.agrees else verdict.reason
        if reason and case.reference == EAGER:
            reason += NO_REFERENCE
        if case.eager_form != case.compiled_form:
            reason = f"the result is {case.compiled_form[:300]}, eager's is {case.eager_form[:300]}"
        note = reason or notes.get(id(case), "")
        if case.variant == NON_CONTIGUOUS and case.misses and not note:
            note = f"a guard miss, answered by eager: {case.last_miss}"[:500]
        found += [
            Agreement(
                artifact=index,
                point=case.point,
                weights=case.weights,
                variant=case.variant,
                max_error=verdict.max_error,
                eager_error=verdict.eager_error,
                reference=case.reference or "float64",
                agrees=not reason,
                note=note,
            )
            for index in case.artifacts
        ]
    return tuple(found)


def _notes_of(claim: Claim) -> dict[int, str]:
    """Return what is to be said of cases because of points that were not tried, or not in full."""
    notes: dict[int, str] = {}
    for omission in claim.omissions:
        own = [case for case in claim.cases if case.artifacts == omission.artifacts]
        at_point = [case for case in own if case.point == omission.point]
        for case in (at_point or own)[-1:]:
            note = f"{describe_point(omission.point)}: {omission.reason}"
            notes[id(case)] = "; ".join(filter(None, (notes.get(id(case), ""), note)))
    return notes


def list_omissions(claim: Claim, artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    """Return, for people, every point that was not tried or not in full: "whole program [batch 1..32] at batch 32: …".

    A proof with gaps goes live, so they must be seen. The text is the child's: it is cut.
    """
    found = []
    for omission in claim.omissions[:MOST_OMISSIONS]:
        index = next((index for index in omission.artifacts if 0 <= index < len(artifacts)), None)
        if index is None:
            continue
        where = f"{artifacts[index].region or 'whole program'} [{describe_coverage(artifacts[index])}]"
        found.append(f"{where} at {describe_point(omission.point)}: {omission.reason}"[:300])
    more = len(claim.omissions) - MOST_OMISSIONS
    return (*found, *([f"and {more} more"] if more > 0 else []))


def refuse_misses(cases: Sequence[Case], artifacts: Sequence[Artifact]) -> None:
    """Raise QualificationFailed where an artifact does not answer for its own coverage."""
    missed = [case for case in cases if case.variant != NON_CONTIGUOUS and (case.misses or not case.compiled)]
    if not missed:
        return
    first = missed[0]
    coverage = describe_coverage(artifacts[first.artifacts[0]])
    raise QualificationFailed(
        f"the artifact does not answer for its own coverage [{coverage}] at {describe_point(first.point)}: "
        f"{first.last_miss or 'no call reached it'}",
        hint="narrow the coverage to what the program exports for",
        details={
            "recompiles": count_misses(cases),
            "misses": [f"{describe_point(case.point)}: {case.last_miss}" for case in missed[:MOST_LISTED]],
        },
    )


def refuse_differences(agreements: Sequence[Agreement], artifacts: Sequence[Artifact]) -> None:
    """Raise QualificationFailed where a compiled output is not as good as eager's."""
    wrong = [agreement for agreement in agreements if not agreement.agrees]
    if not wrong:
        return
    lines = [_spell(agreement, artifacts) for agreement in wrong]
    raise QualificationFailed(
        f"{len(wrong)} of {len(agreements)} comparisons with eager fail, the first: {lines[0]}",
        hint="this build would answer wrongly: report it with the source; freezing or other options may avoid it",
        details={"differences": lines[:MOST_LISTED]},
    )


def with_speeds(artifacts: Sequence[Artifact], claim: Claim) -> tuple[Artifact, ...]:
    """Return the artifacts with the speeds that were measured and the winner over each coverage."""
    found = []
    for index, artifact in enumerate(artifacts):
        measured = [one for one in claim.speeds if index in one.artifacts]
        speeds = tuple(one.speed for one in measured)
        if any(speed.eager.p50_us <= 0 or speed.compiled.p50_us <= 0 for speed in speeds):
            raise QualificationFailed("the numerics child claims a speed that cannot be", hint="prove the bundle again")
        facts = _facts(artifact, measured)
        found.append(msgspec.structs.replace(artifact, speeds=speeds, winner=winner_over(speeds), facts=facts))
    return tuple(found)


def _facts(artifact: Artifact, measured: Sequence[SpeedClaim]) -> dict[str, str]:
    """The artifact's facts, with this proof's clocks and memory in place of an earlier one's."""
    return {
        **{name: text for name, text in artifact.facts.items() if name not in OF_PROOF},
        **write_clocks(Measured.PROOF, {spell_point(one.speed.point): one.clocks for one in measured}),
        **write_memory({spell_point(one.speed.point): one.graph_memory_bytes for one in measured}),
    }


def _spell(agreement: Agreement, artifacts: Sequence[Artifact]) -> str:
    region = artifacts[agreement.artifact].region or "whole program"
    how = ", ".join(
        part for part in (describe_point(agreement.point), f"{agreement.weights} weights", agreement.variant) if part
    )
    return f"{region} at {how}: {agreement.note}"
