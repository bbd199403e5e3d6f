"""Selection: directional, per factor, with every reason."""

from typing import Any

import pytest

from aot.rules import FRESH_PROCESS
from aot.schema.capability import Capability
from aot.schema.decision import Accepted, Level, Rejected, Undecided
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.select import Policy, describe_coverage, particularity, select, verdict_on
from tests.builders import (
    a_container,
    a_gpu,
    a_gpu_profile,
    a_manifest,
    a_node,
    a_profile,
    a_spec,
    altered,
    an_artifact,
    an_environment,
    an_exact_coverage,
    host_guards,
)

ONE, TWO = Digest.of(b"1"), Digest.of(b"2")


def kinds(verdict: Any) -> list[str]:
    match verdict:
        case Accepted(notes=reasons) | Undecided(missing=reasons) | Rejected(reasons=reasons):
            return [reason.kind for reason in reasons]
    raise AssertionError(verdict)


def host(**facts: Any) -> Environment:
    """The host that fits, with other facts: node facts by their names, container facts likewise."""
    container = {name: value for name, value in facts.items() if name in a_container().__struct_fields__}
    node = {name: value for name, value in facts.items() if name not in container}
    return an_environment(node=a_node(**node), container=a_container(**container))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"cpu": "cpu:x86-64-v4"},
        {"libc": "2.41"},
        {"libstdcxx": "3.4.33"},
        {"libc": "2.34"},
        {"python": "3.13.0"},
        {"threads": 64},
        {"kernel": "4.4.0"},
    ],
)
def test_a_superset_of_the_host_is_accepted(facts: dict[str, Any]) -> None:
    assert verdict_on(an_artifact(), host(**_typed(facts))) == Accepted()


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"cpu": "cpu:x86-64-v2"}, "capability"),
        ({"torch": "2.14.1+cpu"}, "torch"),
        ({"torch": "2.13.0+cu130"}, "torch"),
        ({"libc": "2.31"}, "libc"),
        ({"libc": "2.4"}, "libc"),  # older than 2.34 as a version, though not as a decimal number
        ({"libstdcxx": "3.4.28"}, "libstdcxx"),
        ({"machine": "aarch64"}, "machine"),
    ],
)
def test_a_lesser_or_other_host_is_rejected_by_name(facts: dict[str, Any], kind: str) -> None:
    verdict = verdict_on(an_artifact(), host(**_typed(facts)))
    assert isinstance(verdict, Rejected)
    assert kinds(verdict) == [kind]


def test_all_reasons_are_kept() -> None:
    verdict = verdict_on(an_artifact(), host(**_typed({"cpu": "cpu:x86-64", "torch": "2.11.0", "libc": "2.17"})))
    assert kinds(verdict) == ["capability", "torch", "libc"]


def test_an_unseen_host_fact_is_undecided_and_a_misfit_still_rejects() -> None:
    unseen = host(torch=None, libc=None)
    assert kinds(verdict_on(an_artifact(), unseen)) == ["torch", "libc"]
    assert isinstance(verdict_on(an_artifact(), unseen), Undecided)
    assert isinstance(verdict_on(an_artifact(), host(torch=None, **_typed({"cpu": "cpu:x86-64-v2"}))), Rejected)


@pytest.mark.parametrize("kind", ["capability", "torch", "libc", "machine"])
def test_what_was_not_recorded_is_a_reason_to_reject(kind: str) -> None:
    guards = tuple(guard for guard in host_guards() if guard.kind != kind)
    verdict = verdict_on(an_artifact(host_guards=guards), host())
    assert isinstance(verdict, Rejected)
    assert kinds(verdict) == [kind]


def test_an_unknown_guard_kind_is_rejected_by_value() -> None:
    guards = (*host_guards(), HostGuard(kind="quantum-floor", value="9"))
    verdict = verdict_on(an_artifact(host_guards=guards), host())
    assert isinstance(verdict, Rejected)
    assert kinds(verdict) == ["quantum-floor"]


def test_an_unknown_capability_of_a_newer_version_is_rejected_by_value() -> None:
    guards = tuple(
        HostGuard(kind="capability", value="cpu:x86-64-v9") if guard.kind == "capability" else guard
        for guard in host_guards()
    )
    assert isinstance(verdict_on(an_artifact(host_guards=guards), host()), Rejected)


GPU_GUARDS = (
    *host_guards("cuda:sm_90", torch="2.13.0+cu130"),
    HostGuard(kind="cuda", value="13.0"),
    HostGuard(kind="driver", value="580.65"),
    HostGuard(kind="sku", value="NVIDIA H100 80GB HBM3"),
    HostGuard(kind="memory", value=str(8 << 30)),
)


def gpu_host(**facts: Any) -> Environment:
    fields = {"gpus": (a_gpu(),), "driver": "580.159.03", "torch": "2.13.0+cu130", "cuda": "13.0"}
    return host(**(fields | facts))


def gpu_artifact() -> Any:
    return an_artifact(capability="cuda:sm_90", host_guards=GPU_GUARDS)


def test_the_card_it_was_tuned_on_is_accepted_without_a_note() -> None:
    assert verdict_on(gpu_artifact(), gpu_host()) == Accepted()


def test_the_same_sm_on_another_sku_runs_and_the_policy_decides() -> None:
    other = gpu_host(gpus=(a_gpu(sku="NVIDIA H200", memory_bytes=141 << 30),))
    assert kinds(verdict_on(gpu_artifact(), other)) == ["sku"]
    assert isinstance(verdict_on(gpu_artifact(), other), Accepted)
    assert isinstance(verdict_on(gpu_artifact(), other, policy=Policy(tuned_elsewhere=False)), Rejected)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"driver": "550.54.15"}, "driver"),
        ({"cuda": "12.8"}, "cuda"),
        ({"gpus": (a_gpu(memory_bytes=4 << 30),)}, "memory"),
        ({"gpus": (a_gpu(capability=Capability("cuda:sm_80")),)}, "capability"),
    ],
)
def test_a_gpu_host_that_lacks_something_is_rejected_by_name(facts: dict[str, Any], kind: str) -> None:
    assert kinds(verdict_on(gpu_artifact(), gpu_host(**_typed(facts)))) == [kind]


def test_a_host_without_cards_is_rejected_and_says_so() -> None:
    verdict = verdict_on(gpu_artifact(), gpu_host(gpus=()))
    assert isinstance(verdict, Rejected)
    assert verdict.reasons[0].text == "generated for cuda:sm_90, this host has no cuda device"


def bundle(capability: str) -> Any:
    profile = a_profile(capability=capability)
    return a_manifest(a_spec(), profile=profile, artifacts=(an_artifact(capability=capability),))


def test_the_highest_level_that_the_cpu_covers_is_chosen() -> None:
    bundles = [(ONE, bundle("cpu:x86-64-v2")), (TWO, bundle("cpu:x86-64-v3"))]
    assert select(bundles, host()).bundle == TWO
    assert select(bundles, host(**_typed({"cpu": "cpu:x86-64-v2"}))).bundle == ONE
    assert select(bundles, host(**_typed({"cpu": "cpu:x86-64"}))).bundle is None


def test_every_artifact_of_every_bundle_is_decided() -> None:
    both = a_manifest(artifacts=(an_artifact(), an_artifact(coverage=an_exact_coverage(), torch="2.11.0")))
    gpu = a_manifest(a_spec(profile="h100"), profile=a_gpu_profile())
    selection = select([(ONE, both), (TWO, gpu)], host())
    assert [(decision.bundle, decision.artifact) for decision in selection.decisions] == [(ONE, 0), (ONE, 1), (TWO, 0)]
    assert (selection.bundle, selection.artifacts) == (ONE, (0,))
    assert len(selection.reasons) >= 2


def test_undecided_is_chosen_only_when_the_caller_will_look_again() -> None:
    blind = host(torch=None)
    assert select([(ONE, bundle("cpu:x86-64-v3"))], blind).bundle is None
    selection = select([(ONE, bundle("cpu:x86-64-v3"))], blind, policy=Policy(undecided=True))
    assert (selection.bundle, selection.undecided) == (ONE, True)


def test_a_full_fit_is_chosen_before_an_undecided_one() -> None:
    sure = a_manifest(artifacts=(an_artifact(torch="2.13.0+cpu"),))
    unsure = a_manifest(artifacts=(an_artifact(host_guards=(*host_guards(), HostGuard(kind="driver", value="1.0"))),))
    selection = select([(TWO, unsure), (ONE, sure)], host(), policy=Policy(undecided=True))
    assert (selection.bundle, selection.undecided) == (ONE, False)


def test_what_only_an_unseen_fact_tells_apart_is_an_alternative_to_the_undecided_choice() -> None:
    blind, policy = host(torch=None), Policy(undecided=True)
    older = a_manifest(artifacts=(an_artifact(torch="2.11.0+cpu"), an_artifact(torch="2.11.0+cpu")))
    newer = a_manifest(artifacts=(an_artifact(torch="2.13.0+cpu"), an_artifact(capability="cuda:sm_90")))
    bundles = [(ONE, older), (TWO, newer), (Digest.of(b"lower"), bundle("cpu:x86-64-v2"))]
    selection = select(bundles, blind, policy=policy)
    assert (selection.bundle, selection.undecided, selection.alternatives) == (ONE, True, (TWO,))
    assert [(one.bundle, one.artifacts, one.alternatives) for one in selection.choices()] == [
        (ONE, (0, 1), (TWO,)),
        (TWO, (0,), ()),
    ]
    decided = select(bundles, host(), policy=policy)
    assert (decided.bundle, decided.undecided, decided.alternatives) == (TWO, False, ())
    twice = select([(ONE, newer), (TWO, newer)], host(), policy=policy)
    assert (twice.bundle, twice.alternatives) == (ONE, ()), "equal, and each would do"


def test_of_two_undecided_bundles_that_hang_on_the_same_facts_one_is_enough() -> None:
    blind, policy = host(torch=None), Policy(undecided=True)
    one, stricter = a_manifest(), a_manifest(artifacts=(an_artifact(), with_guard(kind="driver", value="550.0")))
    assert select([(ONE, one), (TWO, one)], blind, policy=policy).alternatives == ()
    also = a_manifest(artifacts=(with_guard(kind="driver", value="550.0"),))
    assert select([(ONE, one), (TWO, also)], blind, policy=policy).alternatives == (), "asks for more than the first"
    assert select([(TWO, also), (ONE, one)], blind, policy=policy).alternatives == (ONE,)
    assert select([(TWO, stricter), (ONE, one)], blind, policy=policy).alternatives == (ONE,)


def with_guard(**guard: str) -> Any:
    return an_artifact(host_guards=(*host_guards(), HostGuard(**guard)))


def test_arch_specific_code_is_chosen_before_code_for_every_later_card() -> None:
    bundles = [(ONE, bundle_for("cuda:sm_80")), (TWO, bundle_for("cuda:sm_86"))]
    on_a10 = gpu_host(gpus=(a_gpu(capability=Capability("cuda:sm_86"), sku="NVIDIA A10"),))
    assert select(bundles, on_a10).bundle == TWO
    exact = [(ONE, bundle_for("cuda:sm_90")), (TWO, bundle_for("cuda:sm_90a"))]
    assert select(exact, gpu_host()).bundle == TWO


def bundle_for(capability: str) -> Any:
    guards = tuple(guard for guard in GPU_GUARDS if guard.kind not in ("sku", "capability"))
    artifact = an_artifact(capability=capability, host_guards=(*guards, HostGuard(kind="capability", value=capability)))
    return a_manifest(profile=a_gpu_profile(capability=capability), artifacts=(artifact,))


def test_rules_about_a_card_hold_for_one_and_the_same_card() -> None:
    small = a_gpu(memory_bytes=4 << 30)
    large = a_gpu(capability=Capability("cuda:sm_80"), sku="NVIDIA A100-SXM4-80GB")
    verdict = verdict_on(gpu_artifact(), gpu_host(gpus=(small, large)))
    assert isinstance(verdict, Rejected)
    assert kinds(verdict) == ["memory"], "the reasons are those of the card that comes nearest"
    assert verdict.devices == (0, 1)
    assert verdict_on(gpu_artifact(), gpu_host(gpus=(small, large, a_gpu()))) == Accepted(devices=(2,))


def test_a_card_that_suits_better_is_taken_before_one_that_suits() -> None:
    other = a_gpu(sku="NVIDIA H200", memory_bytes=141 << 30)
    assert verdict_on(gpu_artifact(), gpu_host(gpus=(other, a_gpu(), a_gpu()))) == Accepted(devices=(1, 2))


def test_an_artifact_for_a_cpu_does_not_ask_which_card() -> None:
    assert verdict_on(an_artifact(), host(gpus=(a_gpu(), a_gpu(sku="NVIDIA H200")))) == Accepted()


def test_verdicts_have_names_for_tables() -> None:
    other = gpu_host(gpus=(a_gpu(sku="NVIDIA H200"),))
    verdicts = [
        verdict_on(gpu_artifact(), gpu_host()),
        verdict_on(gpu_artifact(), other),
        verdict_on(gpu_artifact(), gpu_host(driver=None)),
        verdict_on(gpu_artifact(), gpu_host(driver="470.10")),
    ]
    assert [verdict.level for verdict in verdicts] == list(Level)
    assert list(Level) == ["fits", "fits, tuned elsewhere", "undecided", "rejected"]


@pytest.mark.parametrize(
    ("deviation", "lacks"),
    [
        ({"host_guards": tuple(guard for guard in GPU_GUARDS if guard.kind != "driver")}, ["driver"]),
        ({"host_guards": tuple(guard for guard in GPU_GUARDS if guard.kind != "libstdcxx")}, ["libstdcxx"]),
        ({"facts": {"threads": "4"}}, ["threads"]),
        ({"facts": {"cooperative_kernels": "true"}}, ["sm_floor"]),
        (
            {"host_guards": (*GPU_GUARDS, HostGuard(kind="deterministic", value="false"))},
            ["cpu", "default_dtype", "matmul_precision"],
        ),
    ],
)
def test_an_artifact_must_record_what_its_own_facts_say_it_needs(deviation: dict[str, Any], lacks: list[str]) -> None:
    artifact = an_artifact(**({"capability": "cuda:sm_90", "host_guards": GPU_GUARDS} | deviation))
    verdict = verdict_on(artifact, altered(gpu_host(), process=FRESH_PROCESS))
    assert isinstance(verdict, Rejected)
    assert kinds(verdict) == lacks


def test_whoever_takes_only_what_was_tuned_here_must_be_told_where_that_was() -> None:
    artifact = an_artifact(capability="cuda:sm_90", host_guards=tuple(one for one in GPU_GUARDS if one.kind != "sku"))
    assert verdict_on(artifact, gpu_host()) == Accepted()
    assert kinds(verdict_on(artifact, gpu_host(), policy=Policy(tuned_elsewhere=False))) == ["sku"]


def test_a_coverage_reads_well() -> None:
    assert describe_coverage(an_artifact()) == "batch 1..32"
    assert describe_coverage(an_artifact(coverage=an_exact_coverage())) == "exact"


def _typed(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: Capability(value) if name == "cpu" else value for name, value in facts.items()}


def test_what_covers_more_is_the_more_particular() -> None:
    targets = {
        "cpu:x86-64": ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+amx_int8"],
        "cpu:armv8-a": ["cpu:armv8.2-a", "cpu:armv9-a"],
        "cuda:compute_80": ["cuda:sm_80", "cuda:sm_86"],
        "cuda:sm_90": ["cuda:sm_90a"],
        "cuda:sm_100": ["cuda:sm_100f", "cuda:sm_100a"],
        "rocm:gfx9-4-generic": ["rocm:gfx942", "rocm:gfx942:xnack-"],
    }
    for least, more in targets.items():
        order = [particularity(Capability.parse(text)) for text in (least, *more)]
        assert order == sorted(set(order))
    assert particularity(Capability("cuda:sm_130")) > 0
