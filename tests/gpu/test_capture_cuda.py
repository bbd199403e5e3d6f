"""Captured caches on cards: training by one process, by two ranks on NCCL, and what the driver itself has compiled."""

import os
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


@pytest.mark.gpu
def test_what_the_driver_compiled_of_ptx_is_captured_restored_and_read(tmp_path: Path) -> None:
    # Imported here: a machine for cards may lack what the tests of the registry need, and this takes none of it.
    from benchmarks.service import running_service
    from tests.integration.driver_captures import check_driver_cache, write_tree

    tree = write_tree(tmp_path / "tree")
    with running_service(tmp_path / "service") as service:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AOT_")}
        check_driver_cache({**environ, **service.environ}, tree, tmp_path / "node", "libcuda.so.1")
