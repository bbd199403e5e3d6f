"""A proof for a lower level than this host's: found wanting on an emulated CPU, or none was there.

One that holds there is in tests/e2e/test_cpu_profiles.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.emulator import Emulator, NoEmulator, find_emulator
from aot.environment import observe_node
from aot.errors import QualificationFailed
from aot.proof import faults_of
from aot.qualify import Proof, qualify
from aot.qualify import emulated as emulation_of
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.capability import Capability
from tests.builders import altered
from tests.integration.eager_starts import told_again
from tests.integration.handmade import FACTORY, OnDisk, this_profile, write_handmade, write_source

V3 = Capability("cpu:x86-64-v3")
# The program itself says what it ran on: also where a proof runs natively it must not have been AVX-512.
_HELD = "assert torch.backends.cpu.get_cpu_capability() == 'AVX2', torch.backends.cpu.get_cpu_capability()"
HELD_TO_V3 = FACTORY.replace("self.calls += 1", f"{_HELD}; self.calls += 1")

pytestmark = pytest.mark.skipif(
    isinstance(find_emulator(V3), NoEmulator) or observe_node().cpu != "cpu:x86-64-v4",
    reason="needs qemu-user and a host above x86-64-v3",
)


@pytest.fixture(scope="module", autouse=True)
def eager_starts() -> Iterator[None]:
    with told_again():
        yield


def prove(
    place: Path, *faults: str, level: str = "x86-64-v3", isolated: bool = True, factory: str = HELD_TO_V3
) -> Proof:
    profile = this_profile(level)
    bundle = write_handmade(place, *faults, profile=profile)
    found = find_sandbox()
    source: OnDisk = write_source(place / "source", factory)
    proof = qualify(
        bundle.directory,
        source=source,
        spec=bundle.manifest.spec,
        profile=profile,
        scratch=place / "proof",
        sandbox=found if isolated and isinstance(found, Bubblewrap) else None,
    )
    whole = altered(bundle.manifest, qualification=proof.qualification, artifacts=proof.artifacts)
    assert faults_of(whole) == ()
    return proof


def test_an_instruction_above_the_level_dies_there_and_is_named(tmp_path: Path) -> None:
    # Without the sandbox, in which the proofs above and below run on the same emulator.
    with pytest.raises(QualificationFailed) as caught:
        prove(tmp_path, "AVX512", isolated=False)
    assert caught.value.details["signal"] == "SIGILL"
    assert "the start (emulated cpu:x86-64-v3) child died of SIGILL" in caught.value.message
    assert "an instruction that a CPU of cpu:x86-64-v3 has not" in caught.value.hint


def test_a_toolchain_that_needs_more_than_the_level_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="does not run on a CPU of cpu:x86-64") as caught:
        prove(tmp_path, level="x86-64", factory=FACTORY)
    assert caught.value.details["signal"] == "SIGILL"


def test_without_an_emulator_the_proof_says_that_nothing_ran_on_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yet eager is held to the level where speed is measured: each of its calls would have failed above it."""

    def none(capability: Capability) -> Emulator | NoEmulator:
        return NoEmulator(f"no {capability} here")

    monkeypatch.setattr(emulation_of, "find_emulator", none)
    assert _HELD in HELD_TO_V3
    proven = prove(tmp_path)
    assert all(speed.eager.calls for artifact in proven.artifacts for speed in artifact.speeds)
    proof = proven.qualification
    assert (proof.host_cpu, proof.emulation) == ("cpu:x86-64-v4", None)
    assert proof.not_run == "no cpu:x86-64-v3 here; only the instructions of the code were read"
