"""What a proof must hold before a bundle goes live: one rule for the pipeline and the registry."""

from typing import Any

import pytest

from aot.proof import faults_of
from aot.schema.artifact import Artifact, Winner
from aot.schema.manifest import Manifest
from aot.schema.recipe import Randomness, Recipe, Route
from tests.builders import (
    a_frozen_spec,
    a_manifest,
    a_qualification,
    a_spec,
    a_speed,
    a_start_proof,
    altered,
    an_agreement,
    an_artifact,
)

DRAWS = "unchecked: draws random numbers"
USUAL = Recipe()
PICKY = Recipe(require_faster=True)


def proven(artifacts: tuple[Artifact, ...] = (an_artifact(),), *, recipe: Recipe = USUAL, **proof: Any) -> Manifest:
    return a_manifest(a_spec(recipe=recipe), artifacts=artifacts, qualification=a_qualification(**proof))


def test_a_whole_proof_has_no_fault() -> None:
    assert faults_of(a_manifest()) == ()
    assert faults_of(proven(recipe=PICKY)) == ()


@pytest.mark.parametrize(
    ("proof", "fault"),
    [
        ({"start": None}, "no fresh process has loaded it"),
        (
            {"start": a_start_proof(processes=("/usr/bin/g++",))},
            "a fresh process started others: /usr/bin/g++",
        ),
        (
            {"start": a_start_proof(counted_by="polling")},
            "the processes of a fresh start were counted by polling, wanted ptrace",
        ),
        (
            {"start": a_start_proof(compiler_modules=("torch._inductor",))},
            "a fresh process imported the compiler: torch._inductor",
        ),
        ({"recompiles": 2}, "it compiled again 2 times"),
        ({"profile": "other"}, "it was proven on other with torch 2.13.0+cpu"),
        ({"torch": "2.12.0+cpu"}, "it was proven on cpu-v3 with torch 2.12.0+cpu"),
        ({"agreements": ()}, "artifact 0 was not compared with eager"),
        (
            {"agreements": (an_agreement(weights="given"), an_agreement(weights="given", variant="second call"))},
            "artifact 0 was not compared under perturbed weights",
        ),
        ({"agreements": (an_agreement(),)}, "artifact 0 was not compared in a second call"),
        ({"numerics": DRAWS}, f"its numerics are {DRAWS}, which the recipe does not allow"),
    ],
)
def test_each_thing_that_a_proof_lacks_is_said(proof: dict[str, Any], fault: str) -> None:
    assert faults_of(proven(**proof)) == (fault,)


def test_a_difference_is_a_fault_that_gives_its_size() -> None:
    agreements = (*a_qualification().agreements, an_agreement(agrees=False, max_error=41.0))
    (fault,) = faults_of(proven(agreements=agreements))
    assert "artifact 0 at {'batch': 1} differs from float64 by 41" in fault


def test_every_artifact_is_proven_for_itself() -> None:
    both = (an_artifact(), an_artifact(region="layer", speeds=()))
    assert faults_of(proven(both)) == (
        "artifact 1 was not compared with eager",
        "artifact 1 was not measured against eager's speed",
    )


def test_a_frozen_bundle_needs_no_perturbed_weights_but_a_comparison() -> None:
    given = a_qualification(agreements=(an_agreement(weights="given"),))
    assert faults_of(a_manifest(a_frozen_spec(), qualification=given)) == ()
    nothing = a_qualification(agreements=())
    assert faults_of(a_manifest(a_frozen_spec(), qualification=nothing)) == ("artifact 0 was not compared with eager",)


def test_a_program_that_may_draw_random_numbers_needs_neither_comparison_nor_speed() -> None:
    allowed = Recipe(random=Randomness.UNCHECKED)
    assert faults_of(proven((an_artifact(speeds=()),), recipe=allowed, numerics=DRAWS, agreements=())) == ()


def test_compiler_modules_are_allowed_to_the_routes_that_load_through_the_compiler() -> None:
    start = a_start_proof(compiler_modules=("torch._inductor",))
    assert faults_of(proven((an_artifact(route=Route.CACHE),), start=start)) == ()


@pytest.mark.parametrize(
    "artifact",
    [
        an_artifact(speeds=(a_speed(compiled_us=201.0),)),  # no faster on the mean
        an_artifact(speeds=(a_speed(), a_speed(compiled_us=210.0))),  # won by eager at one point
        an_artifact(winner=Winner.EAGER),
    ],
)
def test_faster_means_by_the_mean_and_beaten_nowhere(artifact: Artifact) -> None:
    (fault,) = faults_of(proven((artifact,), recipe=PICKY))
    assert fault.startswith("the recipe requires it to be faster than eager, and the whole program is not: batch 1: ")
    assert faults_of(proven((artifact,))) == ()


def test_a_point_that_is_slower_within_noise_is_made_up_for_by_the_others() -> None:
    within_noise = an_artifact(speeds=(a_speed(), a_speed(compiled_us=204.0)))
    assert faults_of(proven((within_noise,), recipe=PICKY)) == ()


def test_a_speed_that_cannot_be_is_a_fault_and_no_crash() -> None:
    impossible = altered(a_speed(), eager=altered(a_speed().eager, p50_us=0.0))
    assert faults_of(proven((an_artifact(speeds=(impossible,)),), recipe=PICKY)) == (
        "artifact 0 has a speed that cannot be",
    )
