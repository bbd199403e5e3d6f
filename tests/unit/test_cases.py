"""Public reports of artifacts that ran where they must not, or did not run where they should: one row each.

A row cites the report, says what the artifact records and what the host is, and which verdict is right. Groups as in
field reports: misses across machines and ranks, wrong hits, cards and drivers, CPU instruction sets, guards.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from aot.keys import changes_between, factors_of
from aot.rules import FRESH_PROCESS
from aot.rules.profile import profile_guards
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability
from aot.schema.decision import Level, Rejected
from aot.schema.environment import Environment, Gpu
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.schema.spec import Spec
from aot.select import Policy, verdict_on
from tests.builders import (
    a_container,
    a_device,
    a_frozen_spec,
    a_node,
    a_profile,
    a_source,
    a_spec,
    a_toolchain,
    altered,
    an_artifact,
)

FITS, ELSEWHERE, UNDECIDED, REJECTED = Level.FITS, Level.TUNED_ELSEWHERE, Level.UNDECIDED, Level.REJECTED


def card(target: str, sku: str, gib: int, sm_count: int, **more: Any) -> Gpu:
    return Gpu(capability=Capability(f"cuda:{target}"), sku=sku, memory_bytes=gib << 30, sm_count=sm_count, **more)


H100 = card("sm_90", "NVIDIA H100 80GB HBM3", 80, 132)
H100_PCIE = card("sm_90", "NVIDIA H100 PCIe", 80, 114)
H200 = card("sm_90", "NVIDIA H200", 141, 132)
H20 = card("sm_90", "NVIDIA H20", 96, 78)
A100 = card("sm_80", "NVIDIA A100-SXM4-80GB", 80, 108)
A10 = card("sm_86", "NVIDIA A10", 24, 72)
L4 = card("sm_89", "NVIDIA L4", 24, 58)
V100 = card("sm_70", "Tesla V100-SXM2-16GB", 16, 80)
B200 = card("sm_100", "NVIDIA B200", 180, 148)
B300 = card("sm_103", "NVIDIA B300 SXM6 AC", 270, 148)
RTX5090 = card("sm_120", "NVIDIA GeForce RTX 5090", 32, 170)
H100_SLICE = altered(H100, mig="1g.10gb", sm_count=16, memory_bytes=10 << 30)


BYTES_SAY = {"machine": "x86_64", "libc": "2.34", "libstdcxx": "3.4.30"}
PROGRAM_SETS = {"deterministic": "false", "default_dtype": "float32", "matmul_precision": "highest high medium"}


def built_on(gpu: Gpu, *, says: str | None = None, cuda: str = "12.8", **guards: str | None) -> Artifact:
    """The artifact of a build on this card; a guard of None was not recorded."""
    toolchain = a_toolchain(torch=f"2.11.0+cu{cuda.replace('.', '')}", cuda=cuda, triton="3.6.0")
    device = a_device(sku=gpu.sku, sm_count=gpu.sm_count, memory_bytes=gpu.memory_bytes, mig=gpu.mig)
    profile = a_profile("card", capability=gpu.capability, toolchain=toolchain, device=device)
    values = profile_guards(profile) | PROGRAM_SETS | BYTES_SAY | {"cpu": "cpu:x86-64-v2"}
    return recorded(gpu.capability, values | ({"capability": says} if says else {}) | guards)


def built_for(level: str, **guards: str | None) -> Artifact:
    """The artifact of a CPU build at this level."""
    values = profile_guards(a_profile(capability=f"cpu:{level}")) | PROGRAM_SETS | BYTES_SAY
    return recorded(f"cpu:{level}", values | guards)


def recorded(capability: str, values: dict[str, Any]) -> Artifact:
    guards = tuple(HostGuard(kind=kind, value=str(value)) for kind, value in values.items() if value is not None)
    return an_artifact(capability=capability, host_guards=guards)


def host(*gpus: Gpu, cuda: str = "12.8", cpu: str = "x86-64-v4", **facts: Any) -> Environment:
    """A host with these cards and the torch that goes with them, and other facts by their names."""
    torch = {"torch": f"2.11.0+cu{cuda.replace('.', '')}", "cuda": cuda} if gpus else {"torch": "2.13.0+cpu"}
    container = {name: value for name, value in facts.items() if name in a_container().__struct_fields__}
    process = {name: value for name, value in facts.items() if name in FRESH_PROCESS.__struct_fields__}
    node = {name: value for name, value in facts.items() if name not in container | process}
    driver = {"driver": "580.159.03"} if gpus else {}
    return Environment(
        node=a_node(**({"gpus": gpus, "cpu": Capability(f"cpu:{cpu}")} | driver | node)),
        container=a_container(**(torch | container)),
        process=altered(FRESH_PROCESS, **process),
    )


@dataclass(frozen=True)
class Case:
    report: str
    artifact: Artifact
    host: Environment
    level: Level
    kinds: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)


MISSES = [
    Case("pytorch#144859: a second H100 host hits", built_on(H100), host(H100), FITS),
    Case(
        "vllm-project/vllm#47573: what the host is called and has beside does not count",
        built_on(H100),
        host(H100, kernel="5.4.0", cpu_model="another", memory_bytes=1 << 40, cores=96, python="3.12.3"),
        FITS,
    ),
    Case("vllm-project/vllm#47573: nor does a newer driver", built_on(H100), host(H100, driver="590.10"), FITS),
    Case("vllm-project/vllm#47573: nor a newer glibc", built_for("x86-64-v3"), host(libc="2.41"), FITS),
    Case("NovaSky-AI/SkyRL#2167: the place of an engine does not count", built_on(H100), host(H100, rank=3), FITS),
    Case(
        "pytorch#189330: code without collectives serves every group",
        built_on(H100),
        host(H100, world_size=512, rank=511),
        FITS,
    ),
    Case(
        "pytorch#108971: every card of eight alike is served by one compile", built_on(H100), host(*8 * (H100,)), FITS
    ),
    Case("pytorch#170621: and so is every rank", built_on(H100), host(*8 * (H100,), world_size=8, rank=5), FITS),
    Case(
        "pytorch#170621: code with collectives says for how many processes",
        built_on(H100, world_size="8"),
        host(H100, world_size=4),
        REJECTED,
        ("world_size",),
    ),
    Case(
        "pytorch#170621: a host whose processes nobody has counted may fit",
        built_on(H100, world_size="8"),
        host(H100, world_size=None),
        UNDECIDED,
        ("world_size",),
    ),
]

WRONG_HITS = [
    Case(
        "pytorch#188390: rank 1 does not run what is rank 0's",
        built_on(H100, world_size="2", rank="0"),
        host(H100, world_size=2, rank=1),
        REJECTED,
        ("rank",),
    ),
    Case(
        "pytorch#188390: rank 0 does",
        built_on(H100, world_size="2", rank="0"),
        host(H100, world_size=2, rank=0),
        FITS,
    ),
    Case("vllm-project/vllm#38962: no card's number is in the code", built_on(H100), host(A10, H100), FITS),
    Case("vllm-project/vllm#24915: a B200 runs again what a B200 compiled", built_on(B200), host(B200), FITS),
    Case(
        "vllm-project/vllm#24915: code for sm_100a runs on no other Blackwell",
        built_on(B200, says="cuda:sm_100a"),
        host(B300),
        REJECTED,
        ("capability", "sku"),
        Policy(tuned_elsewhere=False),
    ),
    Case(
        "vllm-project/vllm#50891: an artifact that does not say what it needs is not used",
        built_on(H100, capability=None),
        host(H100),
        REJECTED,
        ("capability",),
    ),
    Case(
        "triton-lang/triton#1323: V100 code on an A100", built_on(V100, sku=None), host(A100), REJECTED, ("capability",)
    ),
]

CARDS = [
    Case(
        "pytorch#153697: built on an A10, said to be for sm_90: the bytes say sm_86",
        built_on(A10, sku=None, sm_count=None),
        host(H20),
        REJECTED,
        ("capability",),
    ),
    Case(
        "pytorch#153697: what is for sm_90 runs on an H20, tuned elsewhere",
        built_on(H100),
        host(H20),
        ELSEWHERE,
        ("sku", "sm_count"),
    ),
    Case(
        "triton-lang/triton#3001: driver 470 with CUDA 12 kernels",
        built_on(A100, cuda="12.8"),
        host(A100, driver="470.256.02"),
        REJECTED,
        ("driver",),
    ),
    Case(
        "triton-lang/triton#2971: a driver one patch short of the first of its CUDA",
        built_on(A100, cuda="12.8"),
        host(A100, driver="525.60.11"),
        REJECTED,
        ("driver",),
    ),
    Case(
        "triton-lang/triton#3001: minor versions are compatible", built_on(A100), host(A100, driver="525.147.05"), FITS
    ),
    Case(
        "triton-lang/triton#3001: PTX is not",
        built_on(A100, ptx="8.7"),
        host(A100, driver="525.147.05"),
        REJECTED,
        ("ptx",),
    ),
    Case("pytorch#136369: an artifact runs on cuda:1 as on cuda:0", built_on(H100), host(A10, H100), FITS),
    Case("pytorch#152087: and on the second of two", built_on(H100), host(H100, H100), FITS),
    Case(
        "pytorch#109489: a slice of the card that it was tuned on has fewer multiprocessors",
        built_on(H100),
        host(H100_SLICE),
        ELSEWHERE,
        ("sm_count", "mig"),
    ),
    Case(
        "pytorch#141690: a caller who wants what was tuned here gets the reason",
        built_on(H100),
        host(H100_SLICE),
        REJECTED,
        ("sm_count", "mig"),
        Policy(tuned_elsewhere=False),
    ),
    Case(
        "pytorch#109489: a slice with too little memory",
        built_on(H100, memory=str(40 << 30)),
        host(H100_SLICE),
        REJECTED,
        ("memory",),
    ),
    Case(
        "kvark/meganeura#175: 48 multiprocessors against 68",
        built_on(card("sm_89", "NVIDIA GeForce RTX 4070", 12, 46)),
        host(L4),
        ELSEWHERE,
        ("sku", "sm_count"),
    ),
    Case(
        "redhat-et/GKM#120: a version of CUDA is no architecture",
        built_on(H100, says="cuda:12.8"),
        host(H100),
        REJECTED,
        ("capability",),
    ),
    Case("H100 against H200: same architecture", built_on(H100), host(H200), ELSEWHERE, ("sku",)),
    Case("H100 SXM against PCIe", built_on(H100), host(H100_PCIE), ELSEWHERE, ("sku", "sm_count")),
    Case(
        "sm_86 code on sm_120 crash-loops",
        built_on(A10, sku=None, sm_count=None),
        host(RTX5090),
        REJECTED,
        ("capability",),
    ),
    Case("sm_80 code runs on sm_86", built_on(A100), host(A10), ELSEWHERE, ("sku", "sm_count")),
    Case(
        "sm_86 code does not run on sm_80",
        built_on(A10, sku=None, sm_count=None),
        host(A100),
        REJECTED,
        ("capability",),
    ),
    Case(
        "memory of one card and architecture of another make no fit",
        built_on(H100, sku=None, sm_count=None, memory=str(40 << 30)),
        host(H100_SLICE, A100),
        REJECTED,
        ("memory",),
    ),
    Case("CUDA 12 code under a CUDA 13 torch", built_on(H100), host(H100, cuda="13.0"), REJECTED, ("torch", "cuda")),
    Case("a node without a driver", built_on(H100), host(), REJECTED, ("capability", "torch")),
]

INSTRUCTION_SETS = [
    Case(
        "pytorch#121516: AVX-512 code on AVX2", built_for("x86-64-v4"), host(cpu="x86-64-v3"), REJECTED, ("capability",)
    ),
    Case("pytorch#191713: AVX2 code on AVX-512, not even a note", built_for("x86-64-v3"), host(cpu="x86-64-v4"), FITS),
    Case("pytorch#191904: the same level", built_for("x86-64-v3"), host(cpu="x86-64-v3"), FITS),
    Case(
        "pytorch#191715: a CPU that nobody has looked at is not guessed",
        built_for("x86-64-v3"),
        altered(host(), node=a_node(cpu=None)),
        UNDECIDED,
        ("capability",),
    ),
    Case(
        "adoptium/adoptium-support#1507: mixed CPUs in one fleet",
        built_for("x86-64-v3"),
        host(cpu="x86-64-v2"),
        REJECTED,
        ("capability",),
    ),
    Case(
        "adoptium/adoptium-support#1507: another machine",
        built_for("x86-64-v3"),
        host(machine="aarch64"),
        REJECTED,
        ("machine",),
    ),
    Case("threads that were pinned", built_for("x86-64-v3", threads="8"), host(threads=2), REJECTED, ("threads",)),
    Case("a container without glibc", built_for("x86-64-v3"), host(libc="musl 1.2.5"), REJECTED, ("libc",)),
    Case("a container with an older glibc", built_for("x86-64-v3"), host(libc="2.31"), REJECTED, ("libc",)),
    Case(
        "AMX tiles on a kernel before them",
        built_for("x86-64-v4", kernel="5.16"),
        host(kernel="5.15.0-105"),
        REJECTED,
        ("kernel",),
    ),
]

GUARDS = [
    Case(
        "pytorch#157721: a guard that cannot be read stops this artifact, not the program",
        built_for("x86-64-v3", ID_MATCH="<function>"),
        host(),
        REJECTED,
        ("ID_MATCH",),
    ),
    Case(
        "pytorch#194319: nor can one of a newer version",
        built_for("x86-64-v3", **{"phase-of-moon": "full"}),
        host(),
        REJECTED,
        ("phase-of-moon",),
    ),
    Case(
        "pytorch#195287: every reason is named",
        built_for("x86-64-v4", **{"phase-of-moon": "full"}),
        host(cpu="x86-64-v3", libc="2.17"),
        REJECTED,
        ("capability", "libc", "phase-of-moon"),
    ),
    Case(
        "vllm-project/vllm#24274: hardware that was not recorded is not assumed",
        built_on(H100, capability=None, machine=None),
        host(H100),
        REJECTED,
        ("capability", "machine"),
    ),
    Case(
        "pytorch#123745: a library of 2.3 under 2.4",
        built_for("x86-64-v3", torch="2.3.0"),
        host(torch="2.4.0a0+git1"),
        REJECTED,
        ("torch",),
    ),
    Case(
        "pytorch#123745: a CPU build under a CUDA one",
        built_for("x86-64-v3"),
        host(torch="2.13.0+cu130"),
        REJECTED,
        ("torch",),
    ),
    Case(
        "pytorch#123745: a release that it was qualified under as well",
        built_for("x86-64-v3", torch="2.13.0+cpu 2.13.1+cpu"),
        host(torch="2.13.1+cpu"),
        FITS,
    ),
    Case(
        "pytorch#175025: saved under autocast, loaded outside",
        built_on(H100, autocast="cuda:bfloat16"),
        host(H100),
        REJECTED,
        ("autocast",),
    ),
    Case(
        "pytorch#99949: a program that asks for determinism does not get tuned atomics",
        built_on(H100, deterministic="false"),
        host(H100, deterministic=True),
        REJECTED,
        ("deterministic",),
    ),
    Case(
        "pytorch#99949: nor what an earlier version compiled without writing it down",
        built_on(H100, deterministic=None, default_dtype=None, matmul_precision=None, cpu=None),
        host(H100, deterministic=True),
        REJECTED,
        ("deterministic",),
    ),
    Case(
        "what an earlier version compiled fits a process that sets nothing",
        built_on(
            H100, deterministic=None, default_dtype=None, matmul_precision=None, cpu=None, sm_count=None, mig=None
        ),
        host(H100),
        FITS,
    ),
    Case(
        "pytorch#174711: deterministic code serves a program that does not ask",
        built_on(H100, deterministic="true"),
        host(H100),
        FITS,
    ),
    Case(
        "TensorFloat-32 products where full precision was asked for",
        built_on(H100, matmul_precision="high medium"),
        host(H100),
        REJECTED,
        ("matmul_precision",),
    ),
    Case(
        "an inference graph while gradients are recorded",
        built_on(H100, grad="false"),
        host(H100, grad=True),
        REJECTED,
        ("grad",),
    ),
]

CASES = MISSES + WRONG_HITS + CARDS + INSTRUCTION_SETS + GUARDS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.report)
def test_the_verdict_is_the_one_that_the_report_asks_for(case: Case) -> None:
    verdict = verdict_on(case.artifact, case.host, policy=case.policy)
    found = getattr(verdict, "reasons", None) or getattr(verdict, "missing", None) or getattr(verdict, "notes", ())
    assert (verdict.level, {reason.kind for reason in found}) == (case.level, set(case.kinds))


def test_a_rejection_says_what_was_wanted_and_what_was_found() -> None:
    """triton-lang/triton#3001 gave "device kernel image is invalid"."""
    verdict = verdict_on(built_on(A100), host(A100, driver="470.256.02"))
    assert isinstance(verdict, Rejected)
    assert [reason.text for reason in verdict.reasons] == ["needs NVIDIA driver 525.60.13 or newer, this is 470.256.02"]


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [((H100,), ()), ((A10, H100), (1,)), ((H100, H100), (0, 1)), ((H200, A10, H100), (2,)), ((A10, H200), (1,))],
)
def test_the_verdict_says_which_of_several_cards_it_is_for(gpus: tuple[Gpu, ...], devices: tuple[int, ...]) -> None:
    """vllm-project/vllm#38962, pytorch#136369."""
    assert verdict_on(built_on(H100), host(*gpus)).devices == devices


def test_cache_entries_are_exact_in_the_instruction_set() -> None:
    """Read by AVX-512 hosts, entries made for AVX2 corrupted the heap; the other way round the numbers were wrong."""
    entries = {
        "libstdcxx": "3.4.30",
        "machine": "x86_64",
        "torch": "2.13.0+cpu",
        "python": "3.11",
        "capability": "cpu:x86-64-v3",
    }
    artifact = altered(recorded("cpu:x86-64-v3", entries | {"isa": "x86-64-v3"}), route=Route.CACHE)
    assert verdict_on(artifact, host(cpu="x86-64-v3")).level is FITS
    assert verdict_on(artifact, host(cpu="x86-64-v4")).level is REJECTED
    without = altered(recorded("cpu:x86-64-v3", entries), route=Route.CACHE)
    assert [reason.kind for reason in verdict_on(without, host(cpu="x86-64-v3")).reasons] == ["isa"]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Question:
    """Two builds that must, or must not, share a key; `factors` name what tells them apart."""

    report: str
    before: tuple[Spec, Profile]
    after: tuple[Spec, Profile]
    factors: tuple[str, ...] = ()


GPU_PROFILE = a_profile("h100", capability="cuda:sm_90", device=a_device())
QUESTIONS = [
    Question(
        "vllm-project/vllm#47573: where and by whom it is built is no factor",
        (a_spec("mini", namespace="one"), a_profile()),
        (a_spec("other", namespace="two"), a_profile("renamed", packages={"x": "1"})),
    ),
    Question(
        "ai-dynamo/modelexpress#560: the configuration of the compiler is one",
        (a_spec(recipe=Recipe(mode=Mode.DEFAULT)), a_profile()),
        (a_spec(recipe=Recipe(mode=Mode.MAX_AUTOTUNE)), a_profile()),
        ("mode",),
    ),
    Question(
        "1CatAI/1Cat-vLLM#536: so is every switch that changes code",
        (a_spec(), a_profile()),
        (a_spec(recipe=Recipe(options={"epilogue_fusion": False}, environment={"KERNEL_ROUTE": "b"})), a_profile()),
        ("option:epilogue_fusion", "environment:KERNEL_ROUTE"),
    ),
    Question(
        "vllm-project/vllm#50891: the program's own configuration is part of its source",
        (a_spec(source=a_source(b"images on")), a_profile()),
        (a_spec(source=a_source(b"images off")), a_profile()),
        ("source",),
    ),
    Question(
        "vllm-project/vllm-ascend#15188: custom operators are pinned requirements",
        (a_spec(source=a_source(requirements=("ops==1.0",))), a_profile()),
        (a_spec(source=a_source(requirements=("ops==1.1",))), a_profile()),
        ("requirements",),
    ),
    Question(
        "triton-lang/triton#1323: the architecture is a factor",
        (a_spec(), a_profile(capability="cuda:sm_80", device=a_device())),
        (a_spec(), a_profile(capability="cuda:sm_90", device=a_device())),
        ("capability",),
    ),
    Question(
        "pytorch#109489: and the number of multiprocessors",
        (a_spec(), GPU_PROFILE),
        (a_spec(), altered(GPU_PROFILE, device=a_device(sm_count=16, mig="1g.10gb"))),
        ("device",),
    ),
    Question(
        "vllm-project/vllm#28759: a program of the same shapes that reads other inputs is another one",
        (a_spec(source=a_source(b"ids")), a_profile()),
        (a_spec(source=a_source(b"embeddings")), a_profile()),
        ("source",),
    ),
    Question(
        "pytorch#160472: so is one whose operator says another dtype of its output",
        (a_spec(source=a_source(b"fake: float32", requirements=("ops==1.0",))), a_profile()),
        (a_spec(source=a_source(b"fake: float16", requirements=("ops==1.0",))), a_profile()),
        ("source",),
    ),
    Question(
        "pytorch#194451: no random number is part of a key: what is asked twice has one",
        (a_spec(), a_profile()),
        (a_spec(), a_profile()),
    ),
    Question(
        "vllm-project/vllm#55383: other weights are another build only where they are in the code",
        (a_frozen_spec(weights=()), a_profile()),
        (a_frozen_spec(), a_profile()),
        ("weights",),
    ),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.report)
def test_a_key_changes_with_what_changes_the_code_and_with_nothing_else(question: Question) -> None:
    changes = changes_between(factors_of(*question.before), factors_of(*question.after))
    assert {change.name for change in changes} == set(question.factors)
