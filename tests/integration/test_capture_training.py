"""Real programs on captured caches: training by two ranks, and a server that keeps its caches below its own root."""

import os
import sys
from pathlib import Path

import pytest

from aot.capture.capture import Captured, capture
from aot.capture.entries import Kind
from aot.capture.pins import effective_environment
from aot.capture.record import artifact_of
from aot.environment import observe_environment
from aot.pipeline.profiles import observe_profiles
from aot.schema.artifact import Artifact

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent


def captured(scratch: Path, *command: str) -> tuple[Captured, Artifact]:
    """Run the command on empty caches and again on what that left; the second run has found everything."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR_", "CXX"))}
    environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pools of processes that import torch once more
    environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # nor half a minute of trying the compiler's instruction sets
    effective = effective_environment(observe_environment(), environ, command=command)
    made = capture(command, environ=environ, effective=effective, scratch=scratch)
    profile = observe_profiles(observe_environment())[0]
    counted = made.second
    assert counted is not None and counted.restored > 0
    assert (counted.found, counted.compiled, counted.files) == (counted.restored, 0, 0)
    return made, artifact_of(made.collected, profile, effective, environ=environ, seconds=made.seconds)


def purposes_of(artifact: Artifact) -> list[str]:
    return [line.split()[1] for line in artifact.coverage.constraints[1:]]


def test_two_ranks_train_on_captured_caches_and_share_every_graph(tmp_path: Path) -> None:
    losses = tmp_path / "losses"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    made, artifact = captured(tmp_path / "caches", *launcher, str(HERE / "trained.py"), str(losses))
    cold, warm = losses.read_text().splitlines()
    assert cold == warm and len(cold.split()) == 3
    assert {"forward:", "backward:", "inference:"} == set(purposes_of(artifact))  # the last is the optimizer's step
    graphs = [entry for entry in made.collected.entries if entry.kind is Kind.FXGRAPH]
    assert len(graphs) == len({entry.graph for entry in graphs})
    assert artifact.coverage.constraints[0].endswith("by 2 processes")
    assert ("world_size", "2") in {(guard.kind, guard.value) for guard in artifact.host_guards}


def test_a_server_with_its_own_cache_root_finds_its_layers_graphs(tmp_path: Path) -> None:
    made, artifact = captured(tmp_path / "caches", sys.executable, str(HERE / "served.py"))
    # Three layers, and a break in each: their graphs are compiled once.
    assert purposes_of(artifact) == ["inference:"] * len(artifact.coverage.constraints[1:])
    rank = "vllm/torch_compile_cache/0123456789/rank_0_0/"
    assert all(entry.path.startswith(rank) for entry in made.collected.entries)
