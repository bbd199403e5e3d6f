"""What a program sets is in a real build's guards, and the process that loads it is judged by them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aot.environment import observe_environment
from aot.runtime.load import load_bundle
from aot.runtime.process import observe_here
from aot.schema.decision import Accepted, Level, Undecided
from aot.select import verdict_on
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)


def test_a_build_records_the_settings_and_this_process_settles_them() -> None:
    artifact = builds.everything()[0].artifacts[0]
    recorded = {guard.kind: guard.value for guard in artifact.host_guards}
    assert {kind: recorded.get(kind) for kind in ("deterministic", "default_dtype", "matmul_precision")} == {
        "deterministic": "false",
        "default_dtype": "float32",
        "matmul_precision": "highest high medium",  # products on a CPU are the library's
    }
    seen = observe_environment()
    blind = verdict_on(artifact, seen)
    assert isinstance(blind, Undecided)
    assert {reason.kind for reason in blind.missing} == {"deterministic", "default_dtype", "matmul_precision"}
    assert verdict_on(artifact, observe_here(seen)) == Accepted()


def test_a_process_that_asks_for_determinism_runs_eagerly_and_says_why(tmp_path: Path) -> None:
    compiled, source = builds.everything()
    module = builds.open_module(source, seed=5).module
    directory = builds.bundle_of(compiled, tmp_path).directory
    torch.use_deterministic_algorithms(True)
    model = load_bundle(directory, module)
    assert model.reasons
    assert "asks for deterministic algorithms" in model.reasons[0]
    model(torch.randn(2, 16), mask=torch.ones(2, 1))
    assert model.counters["compiled"] == 0
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("high")
    assert load_bundle(directory, module).reasons == ()


def test_another_default_dtype_is_a_rejection(tmp_path: Path) -> None:
    compiled, source = builds.everything()
    module = builds.open_module(source, seed=5).module
    torch.set_default_dtype(torch.float64)
    model = load_bundle(builds.bundle_of(compiled, tmp_path).directory, module)
    assert "traced with default dtype float32, this process has float64" in model.reasons[0]


DETERMINISTIC = builds.STATELESS.replace(
    "def make():",
    'torch.use_deterministic_algorithms(True)\ntorch.set_float32_matmul_precision("medium")\n\ndef make():',
)


def test_a_factory_that_sets_determinism_gives_an_artifact_that_serves_everyone(tmp_path: Path) -> None:
    source = builds.write_source(tmp_path / "tree", DETERMINISTIC)
    compiled = builds.build(source, tmp_path / "scratch", shared=builds.shared_headers())
    artifact = compiled.artifacts[0]
    assert "true" in [guard.value for guard in artifact.host_guards if guard.kind == "deterministic"]
    for asked in (True, False):
        torch.use_deterministic_algorithms(asked)
        assert verdict_on(artifact, observe_here(observe_environment())).level is Level.FITS
