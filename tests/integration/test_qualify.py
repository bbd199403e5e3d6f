"""The whole proof on bundles written by hand: a good one passes, and each fault is found and named."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.bundle import StoredBundle
from aot.errors import CompileStopped, QualificationFailed
from aot.proof import faults_of
from aot.qualify import Proof, qualify
from aot.runtime.constants import read_tensors
from aot.runtime.synthetic import synthetic_tensor
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.artifact import CoverageKind, Winner
from aot.schema.recipe import Dimension, Randomness, Recipe
from aot.schema.spec import Limits
from tests.builders import a_coverage
from tests.integration.eager_starts import told_again
from tests.integration.handmade import FACTORY, write_handmade, write_source, write_two

SLEEPY = FACTORY.replace("self.calls += 1", "__import__('time').sleep(0.04 * len(x)); self.calls += 1")


@pytest.fixture(scope="module", autouse=True)
def eager_starts() -> Iterator[None]:
    with told_again():
        yield


def prove(bundle: StoredBundle, place: Path, *, factory: str = FACTORY, **options: Any) -> Proof:
    found = find_sandbox()
    fields: dict[str, Any] = {"sandbox": found if isinstance(found, Bubblewrap) else None}
    return qualify(
        bundle.directory,
        source=write_source(place / "source", factory),
        spec=bundle.manifest.spec,
        profile=bundle.manifest.profile,
        scratch=place / "proof",
        **(fields | options),
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Proof, list[str]]:
    place = tmp_path_factory.mktemp("good")
    steps: list[str] = []

    def note(event: Mapping[str, Any]) -> None:
        assert event["phase"] == "qualifying"
        steps.append(event["step"])

    return prove(write_handmade(place), place, on_event=note), steps


def test_a_good_bundle_is_proven_from_outside(good: tuple[Proof, list[str]]) -> None:
    start = good[0].qualification.start
    assert start is not None
    assert (start.processes, start.compiler_modules) == ((), ())
    assert 0 < start.seconds < 60
    assert 0 < start.eager_seconds < 60
    assert start.peak_memory_bytes > 50 << 20


def test_every_boundary_and_the_example_are_proven_with_perturbed_weights_and_two_calls(
    good: tuple[Proof, list[str]],
) -> None:
    agreements = good[0].qualification.agreements
    assert all(agreement.agrees and agreement.reference == "float64" for agreement in agreements)
    perturbed = [(one.point["batch"], one.variant) for one in agreements if one.weights == "perturbed"]
    assert perturbed == [(batch, variant) for batch in (1, 2, 3, 32) for variant in ("", "second call")]
    assert [one.variant for one in agreements if one.weights == "factory"] == ["", "non-contiguous"]
    (spread,) = [one for one in agreements if one.variant == "non-contiguous"]
    assert spread.note.startswith("a guard miss, answered by eager")
    assert (good[0].qualification.recompiles, good[0].qualification.numerics) == (0, "checked")


def test_speeds_are_recorded_at_every_boundary_and_the_example(good: tuple[Proof, list[str]]) -> None:
    (artifact,) = good[0].artifacts
    assert [speed.point for speed in artifact.speeds] == [{"batch": batch} for batch in (1, 2, 3, 32)]
    assert all(speed.eager.calls == speed.compiled.calls >= 30 for speed in artifact.speeds)
    assert artifact.winner is Winner.COMPILED


def test_the_canary_holds_inputs_and_what_eager_gives_for_synthetic_weights(good: tuple[Proof, list[str]]) -> None:
    (canary,) = good[0].canaries
    assert [file.path for file in canary.expected] == ["canary/0/inputs.safetensors", "canary/0/outputs.safetensors"]
    inputs, outputs = (read_tensors(good[0].paths[file.digest]) for file in canary.expected)
    scale, calls = (
        synthetic_tensor(name, shape, "float32", seed=canary.weights_seed)
        for name, shape in (("scale", (4,)), ("calls", (1,)))
    )
    expected = inputs["input.0"].double() * scale.double() + calls.double() + 1
    assert outputs["output.0"].equal(expected.float())
    assert any(one.variant == "canary" and one.weights == "seeded" for one in good[0].qualification.agreements)


def test_progress_names_artifact_point_and_weights(good: tuple[Proof, list[str]]) -> None:
    assert "numerics: whole program [batch 1..32] at batch 32: perturbed weights" in good[1]


@pytest.mark.parametrize(
    ("fault", "words", "hint"),
    [
        ("CRASH", "start child died of SIGSEGV", "out of bounds"),
        ("CRASH_AT_LOAD", "start child died of SIGSEGV", "out of bounds"),
        ("ILLEGAL", "start child died of SIGILL", "higher level"),
    ],
)
def test_a_crash_is_a_failed_proof_that_names_the_signal(tmp_path: Path, fault: str, words: str, hint: str) -> None:
    with pytest.raises(QualificationFailed, match=words) as caught:
        prove(write_handmade(tmp_path, fault), tmp_path)
    assert caught.value.details["signal"] == words.split()[-1]
    assert hint in caught.value.hint


def test_a_compiler_that_is_started_is_found_however_short_it_lives(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="must not compile") as caught:
        prove(write_handmade(tmp_path, "START_COMPILER"), tmp_path)
    assert any("g++" in process for process in caught.value.details["processes"])


def test_a_compiler_module_that_is_imported_is_found(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="compiler module") as caught:
        prove(write_handmade(tmp_path, "IMPORT_COMPILER"), tmp_path)
    assert all(name.startswith(("torch._dynamo", "torch._inductor")) for name in caught.value.details["modules"])


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("WRONG", "factory weights"),
        ("BAKED", "perturbed weights"),  # right with the builder's weights
        ("FORGETFUL", "buffer calls"),
        ("WRONG_WHEN_LARGE", "batch 32"),  # right at batch 1 and 2
    ],
)
def test_a_wrong_answer_is_found_and_said_where(tmp_path: Path, fault: str, where: str) -> None:
    with pytest.raises(QualificationFailed, match="comparisons with eager fail") as caught:
        prove(write_handmade(tmp_path, fault), tmp_path)
    assert where in caught.value.message
    if fault == "BAKED":
        assert not any("factory weights" in line for line in caught.value.details["differences"])
    if fault == "WRONG_WHEN_LARGE":
        assert all("batch 32" in line for line in caught.value.details["differences"])


def test_slower_code_leaves_the_coverage_to_eager(tmp_path: Path) -> None:
    proof = prove(write_handmade(tmp_path, "SLOW"), tmp_path)
    assert proof.artifacts[0].winner is Winner.EAGER


def test_a_point_that_takes_long_gets_one_call_and_a_note(tmp_path: Path) -> None:
    proof = prove(write_handmade(tmp_path), tmp_path, factory=SLEEPY, seconds=4.0)
    at_end = [agreement for agreement in proof.qualification.agreements if agreement.point["batch"] == 32]
    assert [agreement.variant for agreement in at_end] == [""]
    assert "batch 32: only one call" in at_end[0].note
    assert any("at batch 32: only one call" in gap for gap in proof.qualification.left_out)


def test_the_proof_holds_without_a_sandbox_as_well(tmp_path: Path) -> None:
    proof = prove(write_handmade(tmp_path), tmp_path, sandbox=None)
    assert proof.qualification.start is not None
    assert proof.qualification.start.processes == ()
    assert all(agreement.agrees for agreement in proof.qualification.agreements)


def test_what_an_earlier_proof_decided_does_not_spare_a_later_one(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path, "WRONG", winner=Winner.EAGER)
    with pytest.raises(QualificationFailed, match="comparisons with eager fail"):
        prove(bundle, tmp_path)


def test_an_example_outside_the_coverage_starts_at_the_nearest_size(tmp_path: Path) -> None:
    """A recipe may replace the factory's sizes: its example has batch 40, the coverage ends at 32."""
    proof = prove(
        write_handmade(tmp_path), tmp_path, factory=FACTORY.replace("torch.randn(3, 4)", "torch.randn(40, 4)")
    )
    assert proof.qualification.start is not None
    assert {agreement.point["batch"] for agreement in proof.qualification.agreements} == {1, 2, 32}


def test_a_coverage_wider_than_the_guards_is_refused(tmp_path: Path) -> None:
    wide = a_coverage(kind=CoverageKind.RANGE, dimensions=(Dimension(name="batch", low=1, high=64),))
    with pytest.raises(QualificationFailed, match="does not answer for its own coverage") as caught:
        prove(write_handmade(tmp_path, coverage=wide), tmp_path)
    assert caught.value.details["recompiles"] >= 1
    assert "batch 64" in caught.value.message


def test_a_program_that_draws_random_numbers_is_marked_and_not_compared(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path, "WRONG", recipe=Recipe(random=Randomness.UNCHECKED))
    proof = prove(bundle, tmp_path)
    assert proof.qualification.numerics == "unchecked: draws random numbers"
    assert (proof.qualification.agreements, proof.canaries) == ((), ())
    assert proof.artifacts[0].speeds


def test_a_source_that_crashes_is_a_failed_proof(tmp_path: Path) -> None:
    factory = "import os, signal\n\ndef make():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    with pytest.raises(QualificationFailed, match="eager child died of SIGSEGV"):
        prove(write_handmade(tmp_path), tmp_path, factory=factory)


def test_a_source_that_leaves_quietly_is_a_failed_proof(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="without a claim"):
        prove(write_handmade(tmp_path), tmp_path, factory="import os\n\ndef make():\n    os._exit(0)\n")


def test_a_source_that_raises_is_a_failed_proof_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match="no such checkpoint"):
        prove(write_handmade(tmp_path), tmp_path, factory="def make():\n    raise ValueError('no such checkpoint')\n")


def test_a_proof_that_hangs_ends_at_its_limit(tmp_path: Path) -> None:
    factory = "import time\n\ndef make():\n    time.sleep(600)\n"
    started = time.monotonic()
    with pytest.raises(QualificationFailed, match="timed out"):
        prove(write_handmade(tmp_path), tmp_path, factory=factory, limits=Limits(wall_seconds=3))
    assert time.monotonic() - started < 60


def test_a_proof_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(CompileStopped, match="lease lost"):
        prove(write_handmade(tmp_path), tmp_path, should_stop=lambda: "lease lost")


REGIONS = FACTORY.replace(
    "def make():",
    """
class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Scaled(), Scaled()

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def make():""",
).replace('"module": Scaled()', '"module": Twice()')


def test_regions_are_proven_on_the_whole_program(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path, region="Scaled", instances=("first", "second"))
    proof = prove(bundle, tmp_path, factory=REGIONS)
    perturbed = [
        (one.point["batch"], one.variant) for one in proof.qualification.agreements if one.weights == "perturbed"
    ]
    assert perturbed == [(batch, variant) for batch in (1, 2, 3, 32) for variant in ("", "second call")]
    assert [speed.point for speed in proof.artifacts[0].speeds] == [{"batch": batch} for batch in (1, 2, 3, 32)]
    (canary,) = proof.canaries
    inputs = read_tensors(proof.paths[canary.expected[0].digest])
    assert inputs["input.0"].shape == (1, 4)


def test_a_wrong_region_is_found(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path, "BAKED", region="Scaled", instances=("first", "second"))
    with pytest.raises(QualificationFailed, match="Scaled at batch 1, perturbed weights"):
        prove(bundle, tmp_path, factory=REGIONS)


def test_each_coverage_is_proven_by_its_own_artifact(tmp_path: Path) -> None:
    """The wide and right one must not answer in place of the narrow and wrong one."""
    bundle = write_two(tmp_path, right=(), wrong=("WRONG",))
    with pytest.raises(QualificationFailed, match="comparisons with eager fail") as caught:
        prove(bundle, tmp_path)
    assert all("batch 4" in line for line in caught.value.details["differences"])


def test_what_a_proof_measures_is_what_a_bundle_needs_to_go_live(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path)
    # No time at all: each artifact still gets its comparisons and one speed.
    proof = prove(bundle, tmp_path, seconds=0.0)
    proven = msgspec.structs.replace(
        bundle.manifest, artifacts=proof.artifacts, qualification=proof.qualification, canaries=proof.canaries
    )
    assert faults_of(proven) == ()
    assert any("no speed" in gap for gap in proof.qualification.left_out)
