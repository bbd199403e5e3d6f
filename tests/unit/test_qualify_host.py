"""Which hosts prove a profile by running its code, and what a proof says of the host."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.emulator import NoEmulator
from aot.qualify import run
from aot.qualify.emulated import host_of, needs_emulation
from aot.schema.capability import Capability
from aot.schema.environment import NodeFacts
from aot.schema.profile import Profile
from tests.builders import a_gpu_profile, a_node, a_profile

V3, V4 = Capability("cpu:x86-64-v3"), Capability("cpu:x86-64-v4")
TILES = "cpu:x86-64-v4+amx_tile"


@pytest.mark.parametrize(("host", "needed"), [(V3, False), (V4, True), (None, True)])
def test_only_a_host_known_to_be_of_the_level_needs_no_emulation(host: Capability | None, needed: bool) -> None:
    assert needs_emulation(a_profile(), host) is needed
    assert not needs_emulation(a_gpu_profile(), host)


@pytest.mark.parametrize(
    ("capability", "node", "host"),
    [
        ("cpu:x86-64-v4", a_node(cpu=V4, cpu_features=("amx_tile",)), V4),
        (TILES, a_node(cpu=V4, cpu_features=("amx_tile",)), TILES),
        (TILES, a_node(cpu=V4, cpu_features=()), V4),
        ("cpu:x86-64-v4", NodeFacts(), None),
    ],
)
def test_a_host_is_spelled_with_features_where_the_profile_is(capability: str, node: NodeFacts, host: str) -> None:
    assert host_of(a_profile(capability=capability), node) == host


def below(monkeypatch: pytest.MonkeyPatch, profile: Profile, host: Capability | None) -> dict[str, Any]:
    monkeypatch.setattr(run, "prove_emulated", lambda *_, **__: NoEmulator("no emulator"))
    proving: Any = SimpleNamespace(profile=profile, scratch=Path())
    stored: Any = None
    return run._prove_below(proving, stored, host=host, seconds=1.0)


def test_the_host_of_a_cpu_profile_is_always_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert below(monkeypatch, a_profile(), V3) == {"host_cpu": V3}
    assert below(monkeypatch, a_gpu_profile(), V3) == {}
    reason = "no emulator; only the instructions of the code were read"
    assert below(monkeypatch, a_profile(), V4) == {"host_cpu": V4, "not_run": reason}
    assert below(monkeypatch, a_profile(), None) == {"host_cpu": None, "not_run": reason}
