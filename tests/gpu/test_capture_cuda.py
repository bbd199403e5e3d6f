"""Training on cards from captured caches: one process, and two ranks on NCCL that share every graph."""

import sys
from pathlib import Path

import pytest

from tests.integration.captures import CUDA, TRAINED, captured, check_losses, check_ranks_share, launched

pytestmark = pytest.mark.torch


@pytest.mark.gpu
def test_a_training_step_finds_every_graph_and_starts_no_compiler(tmp_path: Path) -> None:
    losses = tmp_path / "losses"
    trial = captured(tmp_path / "caches", sys.executable, TRAINED, str(losses), CUDA, device=CUDA)
    check_losses(losses)
    assert {"forward:", "backward:"} <= set(trial.purposes)
    assert trial.artifact.capability.family == "cuda"


@pytest.mark.gpu(cards=2)
def test_two_ranks_on_nccl_train_on_captured_caches_and_share_every_graph(tmp_path: Path) -> None:
    losses = tmp_path / "losses"
    trial = captured(tmp_path / "caches", *launched(2, TRAINED, str(losses), CUDA), device=CUDA)
    check_losses(losses)
    assert {"forward:", "backward:"} <= set(trial.purposes)
    check_ranks_share(trial)
