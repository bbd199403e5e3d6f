"""CPU targets above a host's own: which machine is which, what may be built for another, and that nothing is proven."""

import itertools
import platform
import re
from contextlib import nullcontext
from typing import Any

import pytest

from aot.compile.options import host_limits, inductor_settings, mode_notes, refuse_other_machine
from aot.errors import InvalidConfig, InvalidProfile, InvalidSpec, LoadFailed
from aot.pipeline import profiles
from aot.pipeline.cross import find_cross_profile, nothing_proven, refuse_foreign, refuse_measuring
from aot.pipeline.profiles import observe_profiles
from aot.proof import faults_of
from aot.runtime import tiles
from aot.schema.artifact import CodeFacts
from aot.schema.capability import Capability
from aot.schema.environment import Environment, NodeFacts
from aot.schema.names import Name
from aot.schema.profile import AMX, CPU_TARGETS, Profile, cpu_target_among
from aot.schema.recipe import Mode, Recipe
from aot.schema.targets import level_features
from aot.schema.wire.workers import ProfileView
from tests.builders import a_gpu_profile, a_manifest, a_node, a_profile, a_toolchain, an_artifact

NAME = Name("cpu-x86-64-v4-amx")
ON_AMX = ("amx_bf16", "amx_int8", "amx_tile", "avx512_vnni", "avx512_bf16")
LEVELS = ("cpu-x86-64-v4", "cpu-x86-64-v3", "cpu-x86-64-v2", "cpu-x86-64")


def a_host(level: str = "x86-64-v4", *more: str, **deviations: Any) -> NodeFacts:
    features = tuple(sorted((level_features(level) or frozenset()) | frozenset(more)))
    return a_node(cpu=Capability(f"cpu:{level}"), cpu_features=features, **deviations)


def an_amx_host(**deviations: Any) -> NodeFacts:
    return a_host("x86-64-v4", *ON_AMX, **deviations)


def a_target(name: str = "cpu-x86-64-v4", **deviations: Any) -> Profile:
    return a_profile(name, capability=CPU_TARGETS[name], **deviations)


def viewed(*found: Profile, live: int = 1, held: bool = True) -> list[ProfileView]:
    return [ProfileView(profile=profile, live_workers=live, queued=0, held=held) for profile in found]


# Which profiles a machine is


@pytest.mark.parametrize(
    ("node", "names"),
    [
        (an_amx_host(kernel="6.1.0-18-amd64"), (*LEVELS, NAME)),  # its own level is its first
        (an_amx_host(kernel="5.15.0-1044-aws"), LEVELS),  # Linux gives no tiles before 5.16
        (an_amx_host(kernel=None), LEVELS),
        (a_host("x86-64-v4", *ON_AMX[1:]), LEVELS),
        (a_host("x86-64-v3"), LEVELS[1:]),
        (a_host("x86-64"), LEVELS[3:]),
        (NodeFacts(cpu=Capability("cpu:armv8.4-a")), ("cpu-armv8.4-a",)),
    ],
)
def test_a_machine_is_every_target_that_its_cpu_runs(
    monkeypatch: pytest.MonkeyPatch, node: NodeFacts, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(profiles, "observe_toolchain", lambda: type("Seen", (), {"toolchain": a_toolchain()})())
    found = observe_profiles(Environment(node=node))
    assert tuple(profile.name for profile in found) == names
    assert all(profile.is_cpu_target for profile in found if profile.name in CPU_TARGETS)
    with pytest.raises(InvalidConfig, match="level of this CPU is not known"):
        observe_profiles(Environment())


def test_targets_stand_from_the_higher_to_the_lower() -> None:
    capabilities = list(CPU_TARGETS.values())
    assert all(first.covers(second) for first, second in itertools.pairwise(capabilities))
    assert Capability.parse(AMX) == AMX, "in its one spelling"


# What may be built elsewhere


def test_without_its_workers_a_target_has_the_toolchain_of_the_highest_others() -> None:
    other = a_target("cpu-x86-64-v2", toolchain=a_toolchain(torch="2.11.0"))
    found = cpu_target_among(NAME, [other, a_gpu_profile(), a_target(packages={"numpy": "2.0"}), a_profile("cpu-v3")])
    assert found == Profile(name=NAME, capability=AMX, toolchain=a_toolchain(), packages={"numpy": "2.0"})
    assert cpu_target_among(NAME, [a_gpu_profile(), a_profile("cpu-v3"), a_target(NAME)]) is None
    assert cpu_target_among(Name("cpu-v3"), [a_target()]) is None


@pytest.mark.parametrize(
    ("name", "node"),
    [
        (NAME, an_amx_host()),  # it is that itself
        ("cpu-x86-64-v3", a_host()),
        ("cpu-v3", a_host()),  # no name that says what it is
        ("h100", a_host()),
        (NAME, NodeFacts(cpu=Capability("cpu:armv8.4-a"))),  # another machine's instructions
        (NAME, NodeFacts()),
    ],
)
def test_only_a_target_above_the_host_is_crossed(name: str, node: NodeFacts) -> None:
    assert find_cross_profile(Name(name), viewed(a_target()), node=node) is None


@pytest.mark.parametrize(("live", "held"), [(1, True), (0, True), (0, False)])
def test_what_the_registry_lists_is_what_the_target_is(live: int, held: bool) -> None:
    theirs = a_target(NAME, toolchain=a_toolchain(compiler="g++ 14.2.0"))
    listed = [*viewed(theirs, live=live, held=held), *viewed(a_target())]
    assert find_cross_profile(NAME, listed, node=a_host()) == theirs


def test_what_only_a_push_made_known_decides_no_other_targets_toolchain() -> None:
    pushed = a_target(NAME, toolchain=a_toolchain(torch="2.12.0+cpu"))
    listed = [*viewed(pushed, live=0, held=False), *viewed(a_target("cpu-x86-64-v2"))]
    found = find_cross_profile(Name("cpu-x86-64-v4"), listed, node=a_host("x86-64-v3"))
    assert found == a_target("cpu-x86-64-v4")
    assert find_cross_profile(Name("cpu-x86-64-v4"), viewed(a_target("cpu-x86-64-v3")), node=a_host("x86-64-v3"))


@pytest.mark.parametrize(
    ("recipe", "refused"),
    [
        (Recipe(), False),  # weights outside: nothing is tuned
        (Recipe(freeze=True, mode=Mode.DEFAULT), False),
        (Recipe(freeze=True), True),
        (Recipe(freeze=True, mode=Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS), True),
        (Recipe(freeze=True, options={"max_autotune_gemm_backends": "CPP,ATEN"}), True),
        (Recipe(freeze=True, options={"max_autotune_gemm_backends": "CPP"}), False),
    ],
)
def test_what_would_be_measured_on_the_absent_cpu_is_refused(recipe: Recipe, refused: bool) -> None:
    profile = a_target(NAME)
    if not refused:
        refuse_measuring(recipe, profile)
        return
    with pytest.raises(InvalidSpec, match=r"measures candidates on the CPU") as caught:
        refuse_measuring(recipe, profile)
    assert "--option max_autotune_gemm_backends=CPP" in caught.value.hint


@pytest.mark.parametrize(
    ("capability", "machine", "refused"),
    [
        ("cpu:armv8-a", "x86_64", True),
        ("cpu:armv9-a+sve_vl128", "x86_64", True),
        ("cpu:x86-64-v3", "aarch64", True),
        ("cpu:armv8.4-a", "aarch64", False),
        ("cpu:x86-64-v4", "x86_64", False),
        ("cuda:sm_90", "aarch64", False),
    ],
)
def test_code_of_another_machine_is_refused_by_name(capability: str, machine: str, refused: bool) -> None:
    if not refused:
        refuse_other_machine(Capability(capability), machine=machine)
        return
    with pytest.raises(InvalidProfile, match=f"code for {re.escape(capability)} is built on .*, this machine is") as no:
        refuse_other_machine(Capability(capability), machine=machine)
    assert f"torch's headers and libraries here are for {machine} alone" in no.value.hint


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other machine is the one that this is not")
@pytest.mark.parametrize("name", ["cpu-aarch64", "cpu-armv8-a", "cpu-armv8.4-a"])
def test_an_aarch64_profile_is_refused_on_x86_registered_or_not(name: str) -> None:
    for profile in (None, a_profile(name, capability="cpu:armv8.4-a")):
        with pytest.raises(InvalidProfile, match="is built on aarch64, this machine is x86_64"):
            refuse_foreign(Name(name), profile)
    refuse_foreign(NAME, a_target(NAME))
    refuse_foreign(Name("h100"), a_gpu_profile())


def test_a_proof_of_nothing_says_so_and_passes_nowhere() -> None:
    profile = a_target(NAME)
    proof = nothing_proven(profile, a_host())
    assert (proof.host_cpu, proof.start) == ("cpu:x86-64-v4", None)
    assert proof.not_run.startswith(f"a CPU of cpu:x86-64-v4 does not run all code for {AMX}")
    faults = faults_of(a_manifest(profile=profile, qualification=proof))
    assert "no fresh process has loaded it" in faults
    assert any("does not run all code for" in fault for fault in faults)
    assert any("its numerics are not run" in fault for fault in faults)


# On the CPU itself


def test_eager_keeps_its_tiles_where_the_profile_has_them() -> None:
    assert host_limits(a_target(NAME))["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_AMX"
    assert host_limits(a_target())["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE"
    settings = inductor_settings(Recipe(), a_target(NAME))
    assert (settings["cpp.march"], settings["cpp.simdlen"]) == ("x86-64-v4", 512)


@pytest.mark.parametrize(("recipe", "told"), [(Recipe(), True), (Recipe(freeze=True), False)])
def test_where_no_tiles_are_to_be_expected_the_report_says_so(recipe: Recipe, told: bool) -> None:
    assert any("AMX tiles" in note for note in mode_notes(recipe, a_target(NAME))) is told
    assert not any("AMX tiles" in note for note in mode_notes(recipe, a_target()))


def test_code_with_tiles_is_opened_only_where_the_process_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(tiles, "ask_for_tiles", lambda: asked.append(True) or len(asked) > 1)
    tiles.require_tiles(an_artifact(capability=Capability("cpu:x86-64-v4")))
    assert asked == [], "whoever needs none asks for none"
    with pytest.raises(LoadFailed, match="this process gets no AMX tiles"):
        tiles.require_tiles(an_artifact(capability=AMX))
    tiles.require_tiles(an_artifact(capability=AMX))


@pytest.mark.parametrize(
    ("said", "opened"),
    [
        ({"code": CodeFacts(level="x86-64-v4", features=("avx512f",))}, True),
        ({"code": CodeFacts(level="x86-64-v4+amx_tile", features=("amx_tile",))}, False),
        ({"facts": {"isa_used": "x86-64-v4"}}, True),
        ({"facts": {"isa_used": "x86-64-v4+amx_tile"}}, False),
    ],
)
def test_without_tiles_only_code_that_uses_them_is_refused(
    said: dict[str, Any], opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products that a library computes have another way where a container lets nobody ask for tiles."""
    asked: list[bool] = []
    monkeypatch.setattr(tiles, "ask_for_tiles", lambda: asked.append(False) or False)
    with nullcontext() if opened else pytest.raises(LoadFailed, match="gets no AMX tiles"):
        tiles.require_tiles(an_artifact(capability=AMX, **said))
    assert asked == [False]
