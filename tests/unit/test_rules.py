"""Rules one by one: each is declared monotone, exact or advisory, and keeps to it."""

import re
from typing import Any

import pytest

from aot.rules import FRESH_PROCESS, RULES, Change, Order
from aot.rules.profile import profile_guards
from aot.schema.capability import Capability
from aot.schema.decision import Reason
from aot.schema.environment import Environment
from tests.builders import a_container, a_device, a_gpu, a_node, a_profile, a_toolchain

TORCH_RECORD = "torch==2.13.0+cpu sha256:" + "1" * 64


def host(**facts: Any) -> Environment:
    """A host with an H100 and a CUDA torch, and other facts by their names."""
    container = {name: value for name, value in facts.items() if name in a_container().__struct_fields__}
    process = {name: value for name, value in facts.items() if name in FRESH_PROCESS.__struct_fields__}
    node = {name: value for name, value in facts.items() if name not in container | process}
    seen = {"driver": "580.159.03", "gpus": (a_gpu(),)} | node
    inside = {
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "triton": "3.7.0",
        "hip": "6.4.43482",
        "cxx11_abi": True,
        "threads": 8,
        "bytecode": "cpython-311 a70d0d0a",
        "distributions": (TORCH_RECORD,),
    } | container
    fresh = {name: getattr(FRESH_PROCESS, name) for name in FRESH_PROCESS.__struct_fields__}
    return Environment(
        node=a_node(**seen), container=a_container(**inside), process=type(FRESH_PROCESS)(**(fresh | process))
    )


def check(kind: str, value: str, **facts: Any) -> Reason | None:
    return RULES[kind].check(value, host(**facts))


V4, AMX = Capability("cpu:x86-64-v4"), "cpu:x86-64-v4+amx_int8+amx_tile"
MIG = a_gpu(mig="1g.10gb", sm_count=16, memory_bytes=10 << 30)
H100 = a_gpu()
A10, L4 = a_gpu(capability=Capability("cuda:sm_86")), a_gpu(capability=Capability("cuda:sm_89"))
FAT = "cuda:sm_86 cuda:compute_86"

# kind, the guard's value, the facts under which it holds, those under which it does not
TABLE = [
    ("machine", "x86_64", {}, {"machine": "aarch64"}),
    ("capability", "cpu:x86-64-v3", {"cpu": Capability("cpu:x86-64-v4")}, {"cpu": Capability("cpu:x86-64-v2")}),
    ("capability", "cuda:sm_90", {}, {"gpus": (a_gpu(capability=Capability("cuda:sm_80")),)}),
    ("capability", "cuda:sm_90", {}, {"gpus": ()}),
    ("capability", "cuda:sm_90a", {}, {"gpus": (a_gpu(capability=Capability("cuda:sm_100")),)}),
    ("capability", "cuda:sm_90", {}, {"gpus": (a_gpu(capability=Capability("cuda:sm_130")),)}),
    ("capability", "cuda:compute_80", {}, {"gpus": (a_gpu(capability=Capability("cuda:sm_75")),)}),
    ("capability", "rocm:gfx942", {"gpus": (a_gpu(capability=Capability("rocm:gfx942:sramecc+:xnack-")),)}, {}),
    ("capability", AMX, {"cpu": V4, "cpu_features": ("amx_int8", "amx_tile")}, {"cpu": V4, "cpu_features": ("fma",)}),
    ("capability", AMX, {"cpu": Capability(AMX), "cpu_features": None}, {}),
    ("cpu", "cpu:x86-64-v2", {}, {"cpu": Capability("cpu:x86-64")}),
    ("isa", "x86-64-v3", {}, {"cpu": Capability("cpu:x86-64-v4")}),
    ("memory", str(70 << 30), {}, {"gpus": (MIG,)}),
    ("memory", "1", {}, {"gpus": ()}),
    ("sm_floor", "132", {}, {"gpus": (MIG,)}),
    ("sku", "NVIDIA H100 80GB HBM3", {}, {"gpus": (a_gpu(sku="NVIDIA H200"),)}),
    ("sm_count", "132", {}, {"gpus": (a_gpu(sm_count=114),)}),
    ("mig", "none", {}, {"gpus": (MIG,)}),
    ("mig", "1g.10gb", {"gpus": (MIG,)}, {}),
    ("driver", "525.60.13", {"driver": "535.54"}, {"driver": "470.256.02"}),
    ("driver", "525.60.13", {"driver": "525.60.13"}, {"driver": "525.60.11"}),
    ("ptx", "8.7", {"driver": "570.26"}, {"driver": "565.57.01"}),
    ("ptx", "9.0", {}, {"driver": "575.51.03"}),
    ("capability", FAT, {"gpus": (L4,)}, {"gpus": (a_gpu(capability=Capability("cuda:sm_80")),)}),
    ("capability", FAT, {"gpus": (A10,)}, {"gpus": ()}),
    ("fallback", "cuda:sm_86 8.7", {"gpus": (A10,), "driver": "550.1"}, {"gpus": (H100,), "driver": "550.1"}),
    ("fallback", "cuda:sm_86 8.7", {"gpus": (H100,), "driver": "570.1"}, {"gpus": (), "driver": "550.1"}),
    ("machine_code", "cuda:sm_86", {"gpus": (L4,)}, {"gpus": (H100,)}),
    ("machine_code", "cuda:sm_86", {"gpus": (A10,)}, {"gpus": ()}),
    ("kernel", "5.16", {"kernel": "6.8.0-1021-aws"}, {"kernel": "5.15.0-1051-aws"}),
    ("kernel", "5.16", {"kernel": "6.6.87.2-microsoft-standard-WSL2"}, {"kernel": "unreadable"}),
    ("torch", "2.13.0+cu130", {}, {"torch": "2.13.0+cpu"}),
    ("torch", "2.13.0+cu130 2.13.1+cu130", {"torch": "2.13.1+cu130"}, {"torch": "2.13.2+cu130"}),
    ("torch", "2.13.0a0+gitabc", {"torch": "2.13.0a0+gitabc"}, {"torch": "2.13.0"}),
    ("python", "3.11", {"python": "3.11.14"}, {"python": "3.12.1"}),
    ("interpreter", "3.11.7", {"python": "3.11.7"}, {"python": "3.11.8"}),
    ("triton", "3.7.0", {}, {"triton": "3.7.1"}),
    ("bytecode", "cpython-311 a70d0d0a", {}, {"bytecode": "cpython-311 a70d0d0a opt-1"}),
    ("distribution", TORCH_RECORD, {}, {"distributions": (TORCH_RECORD.replace("1" * 64, "2" * 64),)}),
    ("distribution", TORCH_RECORD, {}, {"distributions": ()}),
    ("libc", "2.34", {"libc": "2.41"}, {"libc": "2.31"}),
    ("libc", "2.34", {"libc": "2.34"}, {"libc": "musl 1.2.5"}),
    ("libstdcxx", "3.4.30", {"libstdcxx": "3.4.33"}, {"libstdcxx": "3.4.28"}),
    ("cxx11_abi", "true", {}, {"cxx11_abi": False}),
    ("cuda", "12.6", {"cuda": "12.8"}, {"cuda": "13.0"}),
    ("cuda", "12.6", {"cuda": "12.6"}, {"cuda": "12.4"}),
    ("hip", "6.4.43482", {"hip": "6.4.43483"}, {"hip": "7.0.51831"}),
    ("threads", "8", {}, {"threads": 4}),
    ("deterministic", "true", {"deterministic": True}, None),
    ("deterministic", "true", {"deterministic": False}, None),
    ("deterministic", "false", {}, {"deterministic": True}),
    ("matmul_precision", "highest", {}, {"matmul_precision": "high"}),
    ("matmul_precision", "high medium", {"matmul_precision": "medium"}, {}),
    ("conv_precision", "tf32", {}, {"conv_precision": "ieee"}),
    ("conv_precision", "ieee", {"conv_precision": "ieee"}, {}),
    ("default_dtype", "float32", {}, {"default_dtype": "bfloat16"}),
    ("autocast", "off", {}, {"autocast": "cuda:bfloat16"}),
    ("autocast", "cuda:bfloat16", {"autocast": "cuda:bfloat16"}, {"autocast": "cuda:float16"}),
    ("grad", "false", {"grad": False}, {}),
    ("world_size", "8", {"world_size": 8}, {"world_size": 4}),
    ("rank", "0", {}, {"rank": 1}),
    ("rank", "0 2 4", {"rank": 4}, {"rank": 1}),
]


@pytest.mark.parametrize(("kind", "value", "fits", "differs"), TABLE)
def test_a_guard_holds_where_it_should_and_nowhere_else(
    kind: str, value: str, fits: dict[str, Any], differs: dict[str, Any] | None
) -> None:
    assert check(kind, value, **fits) is None
    if differs is not None:
        reason = check(kind, value, **differs)
        assert reason is not None
        assert (reason.kind, reason.found is not None) == (kind, True)
        assert "{" not in reason.text


@pytest.mark.parametrize("value", ["cuda:sm_86 cpu:x86-64-v3", "cuda:sm_86  cuda:compute_86", "cuda:sm_86 compute"])
def test_a_list_of_capabilities_that_makes_no_sense_is_rejected_by_value(value: str) -> None:
    reason = check("capability", value, gpus=(A10,))
    assert reason is not None and "is not known to this version" in reason.text


def test_every_rule_is_in_the_table() -> None:
    assert {kind for kind, *_ in TABLE} == set(RULES)


@pytest.mark.parametrize("kind", sorted(RULES))
def test_a_rule_says_its_order_why_it_is_right_and_where_that_is_written(kind: str) -> None:
    rule = RULES[kind]
    text = rule.check.__doc__ or ""
    assert text.lower().startswith(rule.order)
    assert re.search(r"Sources?: \S", text)


@pytest.mark.parametrize("kind", sorted(RULES))
def test_a_fact_that_nobody_observed_is_missing_and_never_against(kind: str) -> None:
    value = next(value for name, value, *_ in TABLE if name == kind)
    reason = RULES[kind].check(value, Environment())
    assert reason is not None
    assert reason.found is None


@pytest.mark.parametrize("kind", sorted(RULES))
def test_a_rule_reads_only_the_facts_that_it_names(kind: str) -> None:
    """With everything but these facts hidden, the answer is the same."""
    rule = RULES[kind]
    for value, facts in ((value, facts) for name, value, *sides in TABLE if name == kind for facts in sides):
        if facts is None:
            continue
        whole, bare = host(**facts), {}
        for scope in ("node", "container", "process"):
            part = getattr(whole, scope)
            own = [name.partition(".")[2] for name in rule.facts if name.startswith(scope)]
            bare[scope] = type(part)(**{name: getattr(part, name) for name in own})
        assert rule.check(value, Environment(**bare)) == rule.check(value, whole)


@pytest.mark.parametrize("kind", sorted(kind for kind, rule in RULES.items() if rule.order is Order.EXACT))
@pytest.mark.parametrize("value", ["", "no such value", "{wanted}", "9" * 5000])
def test_an_exact_guard_with_a_strange_value_holds_nowhere(kind: str, value: str) -> None:
    reason = check(kind, value)
    assert reason is not None
    assert reason.found is not None


@pytest.mark.parametrize("kind", sorted(kind for kind, rule in RULES.items() if rule.order is Order.MONOTONE))
@pytest.mark.parametrize("value", ["", "no such value", "{wanted}", "9" * 5000, "-1", "\u0663"])
def test_a_floor_that_cannot_be_read_is_rejected(kind: str, value: str) -> None:
    reason = check(kind, value)
    assert reason is not None
    assert reason.found is not None


def test_features_that_nobody_observed_are_missing_unless_the_level_is_too_low_anyway() -> None:
    blind = check("capability", AMX, cpu=V4, cpu_features=None)
    assert blind is not None
    assert blind.found is None
    low = check("capability", AMX, cpu=Capability("cpu:x86-64-v3"), cpu_features=None)
    assert low is not None
    assert low.found == "cpu:x86-64-v3"


@pytest.mark.parametrize("kind", ["capability", "cpu"])
def test_a_target_that_no_catalogue_has_runs_nowhere(kind: str) -> None:
    reason = check(kind, "cpu:x86-64-v9", cpu=Capability("cpu:x86-64-v9"))
    assert reason is not None
    assert reason.text == f"{kind} cpu:x86-64-v9 is not known to this version of aot"
    other = check("capability", "cuda:sm_130", gpus=(a_gpu(capability=Capability("cuda:sm_130")),))
    assert other is not None
    assert "is not known" in other.text


def test_a_card_that_no_catalogue_has_runs_nothing() -> None:
    reason = check("capability", "cuda:sm_90", gpus=(a_gpu(capability=Capability("cuda:sm_130")),))
    assert reason is not None
    assert reason.text == "generated for cuda:sm_90; what runs on cuda:sm_130 is not known"


def test_an_unknown_capability_and_an_unknown_ptx_say_so() -> None:
    assert "is not known" in check("capability", "cuda:sm_9000x").text  # type: ignore[union-attr]
    assert "is not known" in check("ptx", "47.11").text  # type: ignore[union-attr]


def test_musl_is_rejected_with_the_reason() -> None:
    reason = check("libc", "2.34", libc="musl 1.2.5")
    assert reason is not None
    assert reason.text == "needs glibc 2.34 or newer, this container has musl 1.2.5"


def test_every_build_for_a_profile_asks_the_same_of_a_host() -> None:
    gpu = a_profile(
        capability="cuda:sm_90", toolchain=a_toolchain(torch="2.13.0+cu130", cuda="13.0"), device=a_device()
    )
    assert profile_guards(gpu) == {
        "capability": "cuda:sm_90",
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "driver": "580.65.06",
        "sku": "NVIDIA H100 80GB HBM3",
        "sm_count": "132",
        "mig": "none",
    }
    assert profile_guards(a_profile(threads=4)) == {
        "capability": "cpu:x86-64-v3",
        "torch": "2.13.0+cpu",
        "threads": "4",
    }
    assert profile_guards(gpu, capability=Capability("cuda:sm_90a"))["capability"] == "cuda:sm_90a"


def test_changes_are_ordered_by_what_they_cost() -> None:
    assert [RULES[kind].change for kind in ("grad", "torch", "driver", "sku")] == sorted(Change)[:4]
