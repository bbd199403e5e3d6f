"""Which registered profile a build on this host is for, when none is named."""

from types import SimpleNamespace
from typing import Any

import pytest

from aot.cli import context
from aot.errors import InvalidInput
from aot.schema.capability import Capability
from aot.schema.environment import Environment, Gpu, NodeFacts
from aot.schema.profile import CPU_TARGETS, Device, Profile
from tests.builders import a_profile

H100 = "NVIDIA H100 80GB HBM3"
CARD = Gpu(capability=Capability("cuda:sm_90"), sku=H100, memory_bytes=80 << 30, sm_count=132)


def of_card(name: str, sku: str) -> Profile:
    device = Device(sku=sku, sm_count=132, memory_bytes=80 << 30)
    return a_profile(name, capability="cuda:sm_90", device=device)


def choose(monkeypatch: pytest.MonkeyPatch, node: NodeFacts, *profiles: Profile, live: tuple[str, ...] = ()) -> str:
    monkeypatch.setattr(context, "observe_environment", lambda: Environment(node=node))
    views = [SimpleNamespace(profile=one, live_workers=int(one.name in live)) for one in profiles]
    client: Any = SimpleNamespace(list_profiles=lambda: SimpleNamespace(profiles=views))
    return context.choose_profile(client, None)


V4 = Capability("cpu:x86-64-v4")
CPUS = (a_profile("cpu-v2", capability="cpu:x86-64-v2"), a_profile("cpu-v3", capability="cpu:x86-64-v3"))


def test_a_host_with_a_card_builds_for_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeFacts(cpu=V4, gpus=(CARD,))
    assert choose(monkeypatch, node, *CPUS, of_card("h100", H100), of_card("h200", "NVIDIA H200")) == "h100"


def test_a_card_of_another_sku_is_not_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeFacts(cpu=V4, gpus=(CARD,))
    assert choose(monkeypatch, node, *CPUS, of_card("h200", "NVIDIA H200")) == "cpu-v3"


def test_what_a_worker_serves_now_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeFacts(cpu=V4, gpus=(CARD,))
    assert choose(monkeypatch, node, *CPUS, of_card("h100", H100), live=("cpu-v2",)) == "cpu-v2"


def test_without_a_card_the_highest_level_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, NodeFacts(cpu=V4, gpus=()), *CPUS, of_card("h100", H100)) == "cpu-v3"
    v2 = NodeFacts(cpu=Capability("cpu:x86-64-v2"))
    assert choose(monkeypatch, v2, *CPUS) == "cpu-v2"


def test_amx_is_for_whoever_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeFacts(cpu=V4, cpu_features=("amx_bf16", "amx_int8", "amx_tile", "avx512_vnni"))
    found = [a_profile(name, capability=capability) for name, capability in CPU_TARGETS.items()]
    assert choose(monkeypatch, node, *found) == choose(monkeypatch, node, *reversed(found)) == "cpu-x86-64-v4"


def test_a_host_that_nothing_fits_is_told_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"NVIDIA H100 80GB HBM3, cpu:x86-64\); registered: cpu-v2, cpu-v3, h200"):
        lowest = NodeFacts(cpu=Capability("cpu:x86-64"), gpus=(CARD,))
        choose(monkeypatch, lowest, *CPUS, of_card("h200", "NVIDIA H200"))


def test_programs_of_a_card_live_on_it() -> None:
    assert of_card("h100", H100).torch_device == "cuda"
    assert a_profile("mi300", capability="rocm:gfx942").torch_device == "cuda"
    assert CPUS[0].torch_device == "cpu"
