"""Real programs on captured caches: training by two ranks, and a server that keeps its caches below its own root."""

import sys
from pathlib import Path

import pytest

from tests.integration.captures import HERE, TRAINED, captured, check_losses, check_ranks_share, launched

pytestmark = pytest.mark.torch


def test_two_ranks_train_on_captured_caches_and_share_every_graph(tmp_path: Path) -> None:
    losses = tmp_path / "losses"
    trial = captured(tmp_path / "caches", *launched(2, TRAINED, str(losses)))
    check_losses(losses)
    assert {"forward:", "backward:", "inference:"} == set(trial.purposes)  # the last is the optimizer's step
    check_ranks_share(trial)


def test_a_server_with_its_own_cache_root_finds_its_layers_graphs(tmp_path: Path) -> None:
    trial = captured(tmp_path / "caches", sys.executable, str(HERE / "served.py"))
    # Three layers, and a break in each: their graphs are compiled once.
    assert trial.purposes == ["inference:"] * len(trial.artifact.coverage.constraints[1:])
    rank = "vllm/torch_compile_cache/0123456789/rank_0_0/"
    assert all(entry.path.startswith(rank) for entry in trial.made.collected.entries)
