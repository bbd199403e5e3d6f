"""Untuned kernels in verdicts, in the proof rule, and in the registry's checks."""

import pytest
from msgspec.structs import replace as altered

from aot.errors import InvalidInput
from aot.proof import faults_of
from aot.schema.artifact import Kernel
from aot.schema.capability import Capability
from aot.schema.decision import Accepted, Level, Rejected, Undecided
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.recipe import Route
from aot.select import Policy, select, verdict_on
from registry.services.proof import require_sound
from tests.builders import a_gpu, a_manifest, a_node, an_artifact, an_environment
from tests.kernel_builders import a_kernel_artifact, a_kernel_manifest

UNTUNED = "untuned: built for cuda:sm_90a without the card, no configuration was measured"


def a_host(capability: str, *, driver: str | None = "580.65.06") -> Environment:
    return an_environment(node=a_node(gpus=(a_gpu(capability=Capability(capability)),), driver=driver))


def test_untuned_kernels_fit_their_card_and_say_so() -> None:
    verdict = verdict_on(a_kernel_artifact(), a_host("cuda:sm_90"))
    assert isinstance(verdict, Accepted)
    assert [note.text for note in verdict.notes] == [UNTUNED]
    assert verdict.level is not Level.FITS


def test_a_policy_that_refuses_what_was_tuned_elsewhere_refuses_the_untuned() -> None:
    verdict = verdict_on(a_kernel_artifact(), a_host("cuda:sm_90"), policy=Policy(tuned_elsewhere=False))
    assert isinstance(verdict, Rejected)
    assert [reason.text for reason in verdict.reasons] == [UNTUNED]


@pytest.mark.parametrize(
    ("artifact", "host", "fits"),
    [
        ("cuda:sm_90a", "cuda:sm_90", True),
        ("cuda:sm_90a", "cuda:sm_100", False),
        ("cuda:sm_80", "cuda:sm_86", True),
        ("cuda:sm_86", "cuda:sm_80", False),
        ("rocm:gfx942", "rocm:gfx942", True),
        ("rocm:gfx942", "rocm:gfx950", False),
        ("rocm:gfx942", "cuda:sm_90", False),
        ("cuda:sm_90a", "rocm:gfx942", False),
    ],
)
def test_kernels_run_on_their_own_architecture(artifact: str, host: str, fits: bool) -> None:
    verdict = verdict_on(a_kernel_artifact(artifact), a_host(host))
    assert isinstance(verdict, Accepted if fits else Rejected)


def test_an_old_driver_is_a_rejection_and_an_unknown_one_undecided() -> None:
    assert isinstance(verdict_on(a_kernel_artifact(), a_host("cuda:sm_90", driver="550.54.15")), Rejected)
    assert isinstance(verdict_on(a_kernel_artifact(), a_host("cuda:sm_90", driver=None)), Undecided)


def test_a_tuned_bundle_is_chosen_before_an_untuned_one() -> None:
    untuned = a_kernel_manifest()
    tuned = altered(untuned, artifacts=tuple(altered(one, tuned=None) for one in untuned.artifacts))
    chosen = select([(Digest.of(b"1"), untuned), (Digest.of(b"2"), tuned)], a_host("cuda:sm_90"))
    assert chosen.bundle == Digest.of(b"2")
    assert select([(Digest.of(b"1"), untuned)], a_host("cuda:sm_90")).bundle == Digest.of(b"1")


def test_kernels_that_nothing_has_run_are_not_proven() -> None:
    faults = faults_of(a_kernel_manifest())
    assert "no fresh process has loaded it" in faults


def test_an_untuned_bundle_is_sound() -> None:
    require_sound(a_kernel_manifest())


def problems(manifest: object) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        require_sound(manifest)
    return caught.value.details["problems"]


def test_a_claim_of_tuning_needs_what_was_measured() -> None:
    manifest = a_kernel_manifest(artifacts=(a_kernel_artifact(tuned=True),))
    assert problems(manifest) == ["artifact 0: it claims to be tuned, and no kernel of it says what was measured"]
    measured = (Kernel(name="add", candidates=4, best_us=11.0, next_us=12.5),)
    require_sound(a_kernel_manifest(artifacts=(a_kernel_artifact(tuned=True, kernels=measured),)))
    lone = (Kernel(name="add", candidates=1, best_us=11.0),)
    assert problems(a_kernel_manifest(artifacts=(a_kernel_artifact(tuned=True, kernels=lone),)))


def test_a_model_that_claims_tuning_is_held_to_the_same() -> None:
    assert problems(a_manifest(artifacts=(an_artifact(tuned=True),)))


@pytest.mark.parametrize("deviation", [{"tuned": None}, {"launch": None}])
def test_a_kernel_says_how_it_is_launched_and_whether_it_is_tuned(deviation: dict[str, None]) -> None:
    [problem] = problems(a_kernel_manifest(artifacts=(a_kernel_artifact(**deviation),)))
    assert "says not how it is launched, or not whether it is tuned" in problem


def test_a_kernel_for_another_card_than_its_profiles_is_not_sound() -> None:
    [problem] = problems(a_kernel_manifest("cuda:sm_80", artifacts=(a_kernel_artifact("cuda:sm_90a"),)))
    assert "which cuda:sm_80 does not cover" in problem


def test_a_kernel_is_no_answer_of_another_route() -> None:
    problem = problems(a_manifest(artifacts=(a_kernel_artifact(),)))[0]
    assert problem == f"artifact 0: its recipe does not allow the route {Route.KERNEL}"
