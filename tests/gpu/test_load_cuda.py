"""Bundles loaded on cards by the pod's own path: on any card of a host, by graphs or by whatever the proof found."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch

from aot.bundle import StoredBundle
from aot.compile.run import Compiled
from aot.qualify import Proof, qualify
from aot.runtime.compiled import CompiledModel
from aot.runtime.graphs import GraphOutputs
from aot.runtime.load import load_bundle
from aot.schema.artifact import Artifact, Winner
from aot.schema.measured import Measured, clocks_of, memory_of, spell_point
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.builders import altered
from tests.gpu.test_compile_cuda import this_card
from tests.integration import compiled as builds

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

LIMITS = Limits(memory_bytes=32 << 30, wall_seconds=500)
CAPTURED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 8)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def make():
    return {"module": Net(), "args": (torch.randn(4, 64),)}
"""
# How many elements are positive decides on the size of a tensor, so the host waits for the card within the program.
WAITING = CAPTURED.replace(
    "return self.second(", "positive = torch.masked_select(x, x > 0).sum()\n        return positive + self.second("
)


@cache
def built(code: str) -> tuple[Compiled, builds.Source, Profile]:
    place = builds.scratch_directory("loaded")
    source, profile = builds.write_source(place / "tree", code), this_card()
    recipe = Recipe(mode=Mode.REDUCE_OVERHEAD)
    compiled = builds.build(
        source, place / "scratch", profile=profile, recipe=recipe, limits=LIMITS, shared=builds.shared_headers()
    )
    return compiled, source, profile


def bundle_of(code: str, place: Path, *artifacts: Artifact) -> StoredBundle:
    """The build of `code` as a bundle, or one of its `artifacts` as a proof has left them."""
    compiled, _, profile = built(code)
    place.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(mode=Mode.REDUCE_OVERHEAD)
    return builds.bundle_of(
        compiled, place, name="net", profile=profile, artifacts=artifacts, recipe=recipe, limits=LIMITS
    )


def a_module(code: str, device: str) -> torch.nn.Module:
    return builds.open_module(built(code)[1], seed=7).module.to(device)


def called(model: CompiledModel, eager: torch.nn.Module, device: str, *, times: int = 3) -> None:
    """Call both so many times with other inputs, and compare."""
    with torch.no_grad():
        for _ in range(times):
            x = torch.randn(4, 64, device=device)
            found = model(x)
            assert found.device == x.device
            torch.testing.assert_close(found, eager(x), rtol=1e-3, atol=1e-3)


def check_on(device: str, place: Path, graphs: GraphOutputs = GraphOutputs.COPIED) -> CompiledModel:
    module = a_module(CAPTURED, device)
    model = load_bundle(bundle_of(CAPTURED, place).directory, module, fallback="raise", graphs=graphs)
    called(model, copy.deepcopy(module), device)
    assert model.counters["compiled"] == 3
    (report,) = model.graphs[""]
    assert (report.sizes, report.reason) == (((4, 64),), "")
    assert model.graph_memory_bytes >= report.memory_bytes >= 4 * 64 * 4
    return model


@pytest.mark.parametrize("graphs", list(GraphOutputs))
def test_a_bundle_is_loaded_on_the_first_card_and_its_calls_are_captured(tmp_path: Path, graphs: GraphOutputs) -> None:
    check_on("cuda:0", tmp_path, graphs)


def test_a_size_that_was_captured_ahead_is_replayed_at_its_first_call(tmp_path: Path) -> None:
    module = a_module(CAPTURED, "cuda:0")
    model = load_bundle(bundle_of(CAPTURED, tmp_path).directory, module, fallback="raise")
    reports = model.capture_graphs([(torch.randn(4, 64, device="cuda:0"),)])
    assert [report.reason for report in reports[""]] == [""]
    called(model, copy.deepcopy(module), "cuda:0")
    assert model.graphs == reports


@pytest.mark.gpu(cards=2)
def test_one_bundle_runs_on_two_cards_of_one_process_with_graphs_on_both(tmp_path: Path) -> None:
    models = [check_on(device, tmp_path / device[-1]) for device in ("cuda:0", "cuda:1")]
    other = models[0].module
    with torch.no_grad():  # and in turn, whichever card is current
        for current in (1, 0):
            with torch.cuda.device(current):
                for number, model in enumerate(models):
                    x = torch.randn(4, 64)
                    wanted = copy.deepcopy(other).cpu()(x)
                    torch.testing.assert_close(model(x.to(f"cuda:{number}")).cpu(), wanted, rtol=1e-3, atol=1e-3)


def test_an_artifact_that_cannot_be_captured_runs_without_a_graph(tmp_path: Path) -> None:
    module = a_module(WAITING, "cuda:0")
    model = load_bundle(bundle_of(WAITING, tmp_path).directory, module, fallback="raise")
    called(model, copy.deepcopy(module), "cuda:0")
    assert model.counters["compiled"] == 3
    (report,) = model.graphs[""]
    assert report.reason.startswith("not captured: ")
    check_on("cuda:0", tmp_path / "another")


@cache
def proven() -> Proof:
    place = builds.scratch_directory("proven")
    bundle = bundle_of(CAPTURED, place)
    return qualify(
        bundle.directory,
        source=built(CAPTURED)[1],
        spec=bundle.manifest.spec,
        profile=bundle.manifest.profile,
        scratch=place / "proof",
        sandbox=builds.sandbox(),
        limits=LIMITS,
    )


def test_the_proof_times_eager_compiled_and_graphs_with_what_they_hold_and_the_clocks() -> None:
    (artifact,) = proven().artifacts
    assert artifact.speeds and artifact.winner in Winner
    clocks, memory = clocks_of(artifact, Measured.PROOF), memory_of(artifact)
    for speed in artifact.speeds:
        assert speed.graphs is not None
        assert min(speed.eager.p50_us, speed.compiled.p50_us, speed.graphs.p50_us) > 0
        assert memory[spell_point(speed.point)] >= 4 * 64 * 4
        assert clocks[spell_point(speed.point)].sm_mhz
    assert {one.variant for one in proven().qualification.agreements} >= {"", "replay"}
    assert clocks_of(artifact, Measured.COMPILED)[""].sm_mhz


@pytest.mark.parametrize("winner", [*Winner, None], ids=lambda one: one or "as proven")
def test_the_loader_follows_the_winner(tmp_path: Path, winner: Winner | None) -> None:
    (artifact,) = proven().artifacts
    if winner is not None:
        speeds = tuple(altered(speed, winner=winner) for speed in artifact.speeds)
        artifact = altered(artifact, speeds=speeds, winner=winner)
    module = a_module(CAPTURED, "cuda:0")
    model = load_bundle(bundle_of(CAPTURED, tmp_path, artifact).directory, module, fallback="raise")
    called(model, copy.deepcopy(module), "cuda:0")
    won = artifact.speeds[0].winner
    assert model.counters["eager_won"] == (3 if won is Winner.EAGER else 0)
    assert model.counters["compiled"] == (0 if won is Winner.EAGER else 3)
    captured = [report for reports in model.graphs.values() for report in reports]
    assert len(captured) == (1 if won is Winner.GRAPHS else 0)
