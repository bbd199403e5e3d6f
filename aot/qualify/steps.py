"""The steps of one proof, each one child or a pair: start, numerics, comparison. On this host or on an emulated CPU."""

import shutil
from collections.abc import Sequence

from aot.bundle import StoredBundle
from aot.qualify.children import Proving, Watched, read_claim
from aot.qualify.job import CASES_DIRECTORY, Claim, Compared, Comparisons, Task
from aot.qualify.start_proof import prove_start
from aot.qualify.verdict import agreements_of, check_claim, refuse_differences, refuse_misses
from aot.schema.artifact import Artifact, Coverage
from aot.schema.recipe import Randomness, Route
from aot.schema.report import Agreement, StartProof


def start_eagerly(proving: Proving, artifacts: Sequence[Artifact], *, name: str = "") -> Watched:
    """Run the start of the `artifacts`' program without them. Raises QualificationFailed where that alone fails."""
    coverages = first_coverages(artifacts)
    eager = proving.run(Task.EAGER, name=name, readable=proving.shown(), coverages=coverages, **proving.source_fields())
    read_claim(eager, Claim)
    return eager


def start_compiled(proving: Proving, stored: StoredBundle) -> Watched:
    """Run the same start with the bundle loaded: a pod's way."""
    coverages = first_coverages(stored.manifest.artifacts)
    return proving.run(Task.START, coverages=coverages, **_bundle_fields(proving, stored))


def first_coverages(artifacts: Sequence[Artifact]) -> tuple[Coverage, ...]:
    """Return each coverage of the first example, which is what both starts call with."""
    return tuple(dict.fromkeys(one.coverage for one in artifacts if one.coverage.example == 0))


def prove_pair(proving: Proving, eager: Watched, start: Watched, artifacts: Sequence[Artifact]) -> StartProof:
    """Compare the starts of the `artifacts`: those of the route function import the compiler, whose cache they load."""
    by_function = any(artifact.route is Route.FUNCTION for artifact in artifacts)
    return prove_start(eager, start, profile=proving.profile, imports_compiler=by_function)


def is_checked(proving: Proving) -> bool:
    """False for a program that draws random numbers: its outputs cannot be compared."""
    return proving.recipe.random is not Randomness.UNCHECKED


def run_numerics(proving: Proving, stored: StoredBundle, *, seconds: float) -> Watched:
    """Run every coverage at its boundaries in `seconds`, beyond which the largest points are left out."""
    return proving.run(
        Task.NUMERICS,
        seconds=min(seconds, proving.limits.wall_seconds / 2),
        checked=is_checked(proving),
        frozen=proving.recipe.freeze,
        **_bundle_fields(proving, stored),
    )


def judge(
    proving: Proving, comparing: Proving, numerics: Watched, claim: Claim, artifacts: Sequence[Artifact]
) -> tuple[Agreement, ...]:
    """Return every agreement; `comparing` runs the child that compares.

    Raises QualificationFailed for a miss within a coverage, or a difference.
    """
    check_claim(claim, artifacts, checked=is_checked(proving))
    refuse_misses(claim.cases, artifacts)
    if not is_checked(proving):
        return ()
    cases = numerics.out / CASES_DIRECTORY
    files = tuple(str(cases / case.file) for case in claim.cases)
    watched = comparing.run(Task.COMPARE, readable=(cases,), cases=files)
    compared: dict[str, Compared] = {one.file: one for one in read_claim(watched, Comparisons).compared}
    shutil.rmtree(cases, ignore_errors=True)
    agreements = agreements_of(claim, compared, artifacts)
    refuse_differences(agreements, artifacts)
    return agreements


def _bundle_fields(proving: Proving, stored: StoredBundle) -> dict[str, object]:
    readable = (*proving.shown(), stored.directory)
    return {**proving.source_fields(), "bundle": str(stored.directory), "readable": readable}
