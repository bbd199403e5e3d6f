"""What a proof must hold before a bundle goes live: one rule for the pipeline and the registry."""

from typing import Any

import pytest

from aot.proof import faults_of
from aot.schema.artifact import Artifact, CodeFacts, Winner
from aot.schema.capability import Capability
from aot.schema.guard import InputGuard
from aot.schema.manifest import Manifest
from aot.schema.recipe import Dimension, Randomness, Recipe, Route
from aot.schema.report import Emulation, Qualification
from tests.builders import (
    a_coverage,
    a_frozen_spec,
    a_gpu_profile,
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
AT_THE_END = an_agreement(point={"batch": 32}, weights="given")
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
            {
                "agreements": (
                    an_agreement(weights="given"),
                    an_agreement(weights="given", variant="second call"),
                    AT_THE_END,
                )
            },
            "artifact 0 was not compared under perturbed weights",
        ),
        ({"agreements": (an_agreement(), AT_THE_END)}, "artifact 0 was not compared in a second call"),
        (
            {"agreements": a_qualification().agreements[:2]},
            "artifact 0 was not compared with eager at batch 32, where its coverage ends",
        ),
        (
            {"agreements": (an_agreement(point={"batch": 2}, variant="second call"), AT_THE_END)},
            "artifact 0 was not compared with eager at batch 1, where its coverage ends",
        ),
        ({"numerics": DRAWS}, f"its numerics are {DRAWS}, which the recipe does not allow"),
    ],
)
def test_each_thing_that_a_proof_lacks_is_said(proof: dict[str, Any], fault: str) -> None:
    assert faults_of(proven(**proof)) == (fault,)


def tried_at(*batches: int) -> dict[str, Any]:
    calls = [an_agreement(point={"batch": batch}, variant="second call") for batch in batches]
    return {"agreements": (*calls, an_agreement(point={"other": 1}))}


def in_steps(**dimension: Any) -> Artifact:
    named = Dimension(**({"name": "batch", "low": 1, "high": 32} | dimension))
    return an_artifact(coverage=a_coverage(dimensions=(named,)))


@pytest.mark.parametrize(
    ("artifact", "batches"),
    [
        (in_steps(low=3, high=30, multiple_of=8), (8, 24)),
        (in_steps(low=0), (1, 32)),  # nobody calls with a size of zero
        (in_steps(high=None), (1,)),  # an end that is nowhere cannot be tried
        (in_steps(low=4, high=4), (4,)),
    ],
)
def test_the_ends_of_a_range_are_those_that_a_call_can_have(artifact: Artifact, batches: tuple[int, ...]) -> None:
    assert faults_of(proven((artifact,), **tried_at(*batches))) == ()
    assert len(faults_of(proven((artifact,), **tried_at(*(size + 1 for size in batches))))) == len(batches)


@pytest.mark.parametrize(
    ("guard", "may_miss_ends"),
    [
        (InputGuard(kind="expression", value="s[0][0] * 4 <= 64"), True),
        (InputGuard(kind="equal", input=0, dim=0, other=(0, 1)), True),
        (InputGuard(kind="equal", input=0, dim=0, other=(1, 0)), False),  # the same dimension in another input
        (InputGuard(kind="divisible", input=0, dim=0, low=5), True),
        (InputGuard(kind="range", input=0, dim=0, low=1, high=32), False),
    ],
)
def test_an_end_may_be_out_of_reach_only_where_a_guard_ties_sizes(guard: InputGuard, may_miss_ends: bool) -> None:
    plain = an_artifact()
    artifact = altered(plain, input_guards=(*plain.input_guards, guard), inputs=(*plain.inputs, *plain.inputs))
    assert (faults_of(proven((artifact,), **tried_at(1, 5))) == ()) is may_miss_ends
    assert faults_of(proven((artifact,), **tried_at(5))) != ()  # one size stands for no range


def test_a_tie_of_one_dimension_excuses_no_other() -> None:
    plain = an_artifact()
    both = a_coverage(dimensions=(Dimension(name="batch", low=1, high=32), Dimension(name="length", low=2, high=9)))
    inputs = (altered(plain.inputs[0], shape=("batch", "length")),)
    tie = InputGuard(kind="divisible", input=0, dim=1, low=3)
    artifact = altered(plain, coverage=both, inputs=inputs, input_guards=(*plain.input_guards, tie))
    agreements = [an_agreement(point={"batch": 4, "length": size}, variant="second call") for size in (3, 9)]
    assert faults_of(proven((artifact,), agreements=tuple(agreements))) == (
        "artifact 0 was not compared with eager at batch 1, where its coverage ends",
        "artifact 0 was not compared with eager at batch 32, where its coverage ends",
    )


def test_a_step_that_the_dimension_has_itself_ties_nothing() -> None:
    stepped = in_steps(low=4, high=32, multiple_of=4)
    guard = InputGuard(kind="divisible", input=0, dim=0, low=4)
    artifact = altered(stepped, input_guards=(*stepped.input_guards, guard))
    assert faults_of(proven((artifact,), **tried_at(4, 32))) == ()
    assert len(faults_of(proven((artifact,), **tried_at(4)))) == 1


def test_a_difference_is_a_fault_that_gives_its_size() -> None:
    agreements = (*a_qualification().agreements, an_agreement(agrees=False, max_error=41.0))
    (fault,) = faults_of(proven(agreements=agreements))
    assert "artifact 0 at {'batch': 1} differs from float64 by 41" in fault


def test_a_graph_wins_only_where_a_replay_was_compared() -> None:
    graphed = altered(a_speed(point={"batch": 1}), winner=Winner.GRAPHS)
    artifact = an_artifact(speeds=(graphed,))
    (fault,) = faults_of(a_manifest(artifacts=(artifact,), qualification=a_qualification()))
    assert "CUDA graph at batch 1, and no replay was compared" in fault
    seen = (*a_qualification().agreements, an_agreement(variant="replay", point={"batch": 1}))
    assert faults_of(a_manifest(artifacts=(artifact,), qualification=a_qualification(agreements=seen))) == ()


def test_every_artifact_is_proven_for_itself() -> None:
    both = (an_artifact(), an_artifact(region="layer", speeds=()))
    assert faults_of(proven(both)) == (
        "artifact 1 was not compared with eager",
        "artifact 1 was not measured against eager's speed",
    )


def test_a_frozen_bundle_needs_no_perturbed_weights_but_a_comparison() -> None:
    given = a_qualification(agreements=(an_agreement(weights="given"), AT_THE_END))
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


V3, V4 = Capability("cpu:x86-64-v3"), Capability("cpu:x86-64-v4")


def emulated(**deviations: Any) -> Emulation:
    fields: dict[str, Any] = {"agreements": (an_agreement(),), "start": a_start_proof(), "cpu": V3}
    return Emulation(emulator="qemu-x86_64 7.2.22", model="Haswell-noTSX", **(fields | deviations))


def of_card(**deviations: Any) -> Qualification:
    profile = a_gpu_profile()
    return a_qualification(profile=profile.name, torch=profile.toolchain.torch, **deviations)


def test_a_proof_on_an_emulated_cpu_of_the_level_has_no_fault() -> None:
    assert faults_of(proven(host_cpu=V4, emulation=emulated())) == ()


def test_a_frozen_bundle_needs_no_perturbed_weights_in_emulation() -> None:
    given = emulated(agreements=(an_agreement(weights="given"),))
    assert faults_of(a_manifest(a_frozen_spec(), qualification=a_qualification(host_cpu=V4, emulation=given))) == ()


def test_a_host_above_the_level_must_be_accounted_for() -> None:
    fault = "it was proven on a CPU of cpu:x86-64-v4 alone, and nothing says why not on one of cpu:x86-64-v3"
    assert faults_of(proven(host_cpu=V4)) == (fault,)
    assert faults_of(proven(host_cpu=V3)) == ()
    assert faults_of(a_manifest(profile=a_gpu_profile(), qualification=of_card(host_cpu=None))) == ()


def test_a_host_that_nobody_looked_at_proves_nothing_alone() -> None:
    assert faults_of(proven((READ,), host_cpu=None, not_run="no emulator")) == (
        "it was proven on a CPU that was not observed, wanted cpu:x86-64-v3",
    )
    assert faults_of(proven(host_cpu=None)) == ()  # as 0.1.0 wrote it
    assert faults_of(proven(host_cpu=None, emulation=emulated())) == ()


def coded(**code: Any) -> Artifact:
    return an_artifact(code=CodeFacts(**({"level": "x86-64-v3"} | code)))


READ = coded()


def test_instructions_that_were_read_stand_for_a_run_on_the_level() -> None:
    assert faults_of(proven((READ,), host_cpu=V4, not_run="no emulator")) == ()
    assert faults_of(proven((coded(level="x86-64"),), host_cpu=V4, not_run="no emulator")) == ()


@pytest.mark.parametrize(
    ("artifact", "host", "fault"),
    [
        (READ, "cpu:x86-64-v2", "on a CPU of cpu:x86-64-v2, which does not run all code for cpu:x86-64-v3"),
        (READ, "cpu:armv8-a", "on a CPU of cpu:armv8-a, which does not run all code for cpu:x86-64-v3"),
        (an_artifact(), V4, "the code of artifact 0 was not read"),
        (coded(unread_bytes=7), V4, "the code of artifact 0 has 7 bytes that were not read"),
        (coded(level="x86-64-v4"), V4, "the code of artifact 0 needs cpu:x86-64-v4, wanted cpu:x86-64-v3"),
        (
            coded(level="x86-64-v3+unheard_of"),
            V4,
            "the code of artifact 0 needs x86-64-v3+unheard_of, which is not known",
        ),
    ],
)
def test_words_do_not_stand_for_a_run_on_the_level(artifact: Artifact, host: str, fault: str) -> None:
    (found,) = faults_of(proven((artifact,), host_cpu=Capability(host), not_run="no emulator"))
    assert found.endswith(fault)


def test_every_artifact_of_a_host_above_the_level_must_have_been_read() -> None:
    agreements = tuple(altered(one, artifact=index) for index in (0, 1) for one in a_qualification().agreements)
    both = (READ, an_artifact(region="layer"))
    (found,) = faults_of(proven(both, host_cpu=V4, not_run="no emulator", agreements=agreements))
    assert found.endswith("the code of artifact 1 was not read")


@pytest.mark.parametrize(
    ("deviations", "fault"),
    [
        ({"cpu": V4}, "it was proven on an emulated CPU of cpu:x86-64-v4, wanted cpu:x86-64-v3"),
        ({"start": a_start_proof(processes=("/usr/bin/g++",))}, "a fresh process started others: /usr/bin/g++"),
        (
            {"start": a_start_proof(counted_by="polling")},
            "the processes of a fresh start were counted by polling, wanted ptrace",
        ),
        ({"recompiles": 1}, "it compiled again 1 times"),
        ({"agreements": ()}, "artifact 0 was not compared with eager"),
        ({"agreements": (an_agreement(weights="given"),)}, "artifact 0 was not compared under perturbed weights"),
        (
            {"agreements": (an_agreement(agrees=False, max_error=3.0, eager_error=0.0),)},
            "artifact 0 at {'batch': 1} differs from float64 by 3, eager by 0",
        ),
    ],
)
def test_what_fails_in_emulation_is_a_fault_of_the_proof(deviations: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(proven(host_cpu=V4, emulation=emulated(**deviations)))
    assert found.endswith(fault)
    assert "on an emulated CPU of cpu:x86-64-v" in found
