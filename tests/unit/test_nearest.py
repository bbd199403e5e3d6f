"""What comes nearest where nothing fits, and what to build."""

from typing import Any

import pytest

from aot.nearest import _STEPS, missing, nearest, verdict_on_profile
from aot.rules import RULES, Change
from aot.schema.capability import Capability
from aot.schema.decision import Accepted, Decision, Level, Reason, Rejected, Undecided
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.select import decide
from tests.builders import (
    a_container,
    a_device,
    a_gpu,
    a_gpu_profile,
    a_manifest,
    a_node,
    a_profile,
    a_toolchain,
    altered,
    an_artifact,
    an_environment,
    host_guards,
)
from tests.kernel_builders import a_kernel_profile


def rejected(*reasons: tuple[str, str, str], region: str = "") -> Decision:
    against = tuple(Reason(kind=kind, wanted=wanted, found=found, text="no") for kind, wanted, found in reasons)
    return Decision(
        bundle=Digest.of(b"1"), artifact=0, region=region, coverage="exact", verdict=Rejected(reasons=against)
    )


def test_a_line_in_a_program_is_nearer_than_an_image_a_driver_and_other_hardware() -> None:
    decisions = [
        rejected(("capability", "cuda:sm_90", "cuda:sm_80"), region="hardware"),
        rejected(("driver", "580.65.06", "550.54"), region="driver"),
        rejected(("torch", "2.13.0", "2.12.0"), ("threads", "4", "2"), region="image and setting"),
        rejected(("torch", "2.13.0", "2.12.0"), region="image"),
        rejected(("threads", "4", "2"), ("default_dtype", "float32", "float64"), region="settings"),
        rejected(("torch", "a recorded value", "none"), region="artifact"),
    ]
    found = nearest(decisions)
    assert [one.decision.region for one in found] == [
        "settings",
        "image",
        "image and setting",
        "driver",
        "hardware",
        "artifact",
    ]
    assert [one.change for one in found] == [
        Change.SETTING,
        Change.IMAGE,
        Change.IMAGE,
        Change.SYSTEM,
        Change.HARDWARE,
        Change.ARTIFACT,
    ]
    assert found[2].steps == ("torch.set_num_threads(4)", "install torch 2.13.0")
    assert found[5].steps == ("build it again: it does not record its torch",)


def test_what_fits_or_may_fit_is_not_near() -> None:
    fits = decide(Digest.of(b"1"), a_manifest(), an_environment())
    open_ = decide(Digest.of(b"1"), a_manifest(), an_environment(container=a_container(torch=None)))
    assert isinstance(open_[0].verdict, Undecided)
    assert nearest((*fits, *open_)) == ()


def test_equal_ones_keep_their_order() -> None:
    decisions = [rejected(("torch", "2.13.0", "2.12.0"), region=region) for region in "abc"]
    assert [one.decision.region for one in nearest(decisions)] == ["a", "b", "c"]


def test_what_a_newer_version_may_read_is_said_so() -> None:
    artifact = an_artifact(host_guards=(*host_guards(), HostGuard(kind="phase-of-moon", value="full")))
    [near] = nearest(decide(Digest.of(b"1"), a_manifest(artifacts=(artifact,)), an_environment()))
    assert near.steps == ("update aot: guard phase-of-moon=full is not known to this version of aot",)
    assert near.change is Change.ARTIFACT


@pytest.mark.parametrize("kind", sorted(RULES))
def test_every_rule_has_a_step_that_names_what_is_wanted(kind: str) -> None:
    [near] = nearest([rejected((kind, "WANTED", "found"))])
    assert kind in _STEPS
    assert "WANTED" in near.steps[0] or kind == "deterministic"


GPU_HOST: dict[str, Any] = {
    "node": a_node(gpus=(a_gpu(),), driver="580.159.03"),
    "container": a_container(torch="2.13.0+cu130", cuda="13.0", triton="3.7.0"),
}


def test_a_host_is_told_which_build_it_needs() -> None:
    need = missing(an_environment())
    assert (need.capability, need.torch, need.python, need.libc) == ("cpu:x86-64-v3", "2.13.0+cpu", "3.11.7", "2.36")
    assert (need.profile, need.level, need.open_facts) == (None, None, ())
    need = missing(an_environment(**GPU_HOST))
    assert (need.capability, need.sku, need.cuda) == ("cuda:sm_90", "NVIDIA H100 80GB HBM3", "13.0")


def test_a_card_that_this_torch_cannot_use_is_not_built_for() -> None:
    environment = an_environment(node=a_node(gpus=(a_gpu(),), driver="580.159.03"))
    assert missing(environment).capability == "cpu:x86-64-v3"


def test_what_nobody_observed_is_named() -> None:
    assert missing(Environment()).open_facts == ("capability", "torch", "python", "libc")


def test_the_registered_profile_that_serves_best_is_named() -> None:
    profiles = [
        a_profile("v4", capability="cpu:x86-64-v4"),
        a_profile("v2", capability="cpu:x86-64-v2"),
        a_profile("v3", capability="cpu:x86-64-v3"),
        a_profile("other-torch", capability="cpu:x86-64-v3", toolchain=a_toolchain(torch="2.12.1+cpu")),
        a_gpu_profile(),
    ]
    need = missing(an_environment(), profiles=profiles)
    assert need.profile is not None
    assert (need.profile.name, need.level) == ("v3", Level.FITS)
    assert missing(an_environment(), profiles=profiles[:1]).profile is None


def test_what_kernels_alone_are_built_for_is_never_proposed() -> None:
    of_kernels = a_kernel_profile("cuda:sm_90", toolchain=a_gpu_profile().toolchain, triton="3.7.0")
    assert not isinstance(verdict_on_profile(of_kernels, an_environment(**GPU_HOST)), Rejected)
    assert missing(an_environment(**GPU_HOST), profiles=[of_kernels]).profile is None
    found = missing(an_environment(**GPU_HOST), profiles=[of_kernels, a_gpu_profile()]).profile
    assert found is not None and found.name == "h100"


def test_a_workers_profile_is_not_taken_for_the_kernels_by_its_name() -> None:
    of_kernels = a_kernel_profile("cuda:sm_90")
    assert of_kernels.is_for_kernels and a_kernel_profile("rocm:gfx942").is_for_kernels
    for worker in (
        altered(of_kernels, device=a_device()),
        a_gpu_profile(),
        a_gpu_profile(device=None),
        a_profile(),
        a_profile("cpu-x86-64-v3-triton-3.9.0"),
    ):
        assert not worker.is_for_kernels


def test_a_profile_of_the_same_card_comes_before_one_tuned_elsewhere() -> None:
    h200 = a_gpu_profile("h200", device=a_device(sku="NVIDIA H200"))
    own = missing(an_environment(**GPU_HOST), profiles=[h200, a_gpu_profile()])
    assert (own.profile and own.profile.name, own.level) == ("h100", Level.FITS)
    other = missing(an_environment(**GPU_HOST), profiles=[h200])
    assert (other.profile and other.profile.name, other.level) == ("h200", Level.TUNED_ELSEWHERE)


def test_a_profile_is_judged_by_what_its_builds_will_ask() -> None:
    assert verdict_on_profile(a_gpu_profile(), an_environment(**GPU_HOST)) == Accepted()
    old = an_environment(node=a_node(gpus=(a_gpu(),), driver="550.54.15"), container=GPU_HOST["container"])
    verdict = verdict_on_profile(a_gpu_profile(), old)
    assert isinstance(verdict, Rejected)
    assert [reason.kind for reason in verdict.reasons] == ["driver"]
    assert isinstance(verdict_on_profile(a_profile(), an_environment(node=a_node(cpu=None))), Undecided)
    lesser = an_environment(node=a_node(cpu=Capability("cpu:x86-64-v2")))
    assert isinstance(verdict_on_profile(a_profile(), lesser), Rejected)


def test_a_statement_names_one_of_the_values_that_would_do() -> None:
    (near,) = nearest([rejected(("matmul_precision", "high or medium", "highest"))])
    assert near.steps == ('torch.set_float32_matmul_precision("high")',)
    (near,) = nearest([rejected(("torch", "2.13.0+cpu or 2.13.1+cpu", "2.12.0+cpu"))])
    assert near.steps == ("install torch 2.13.0+cpu or 2.13.1+cpu",)
