"""What a process says of its own settings, and which of several cards counts."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aot.rules import FRESH_PROCESS
from aot.runtime import process
from aot.runtime.process import observe_here, observe_process, with_settings
from aot.schema.capability import Capability
from aot.schema.environment import ProcessFacts
from tests.builders import a_gpu, a_node, altered, an_environment


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Leave torch as it was found."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)


def test_a_process_that_sets_nothing_is_a_fresh_one() -> None:
    assert observe_process() == FRESH_PROCESS


def test_what_a_program_sets_is_observed() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        seen = observe_process()
    assert seen == altered(
        FRESH_PROCESS, deterministic=True, default_dtype="bfloat16", grad=False, autocast="cpu:bfloat16"
    )


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_products_is_observed_as_it_was_set(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    assert observe_process().matmul_precision == precision


def test_the_precision_is_known_whichever_interface_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.get_float32_matmul_precision raises once both were used; setting it for good would break later tests.
    matmul = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    assert observe_process().matmul_precision == "high"


def test_ranks_are_those_of_the_process_group(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        seen = observe_process()
    finally:
        torch.distributed.destroy_process_group()
    assert (seen.world_size, seen.rank) == (1, 0)


def test_described_settings_stand_and_others_are_this_processs() -> None:
    described = altered(an_environment(), process=ProcessFacts(deterministic=True))
    assert with_settings(described) == described
    assert with_settings(an_environment()).process == observe_process()


def test_a_process_without_torch_is_explained_as_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "sys", SimpleNamespace(modules={}))
    assert with_settings(an_environment()).process == FRESH_PROCESS


SMALL = a_gpu(sku="NVIDIA A10", capability=Capability("cuda:sm_86"), memory_bytes=24 << 30, sm_count=72)


class OnCard(torch.nn.Module):
    """A module whose parameter says that it is on a card."""

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter((SimpleNamespace(device=torch.device("cuda:1")),))


def on_cards(monkeypatch: pytest.MonkeyPatch, gpus: tuple[Any, ...], **found: Any) -> tuple[Any, ...]:
    """The cards that count for a module on cuda:1, whose properties CUDA gives as `found`."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**found))
    return observe_here(an_environment(node=a_node(gpus=gpus)), OnCard()).node.gpus or ()


A10 = {"major": 8, "minor": 6, "name": "NVIDIA A10", "total_memory": 23 << 30, "multi_processor_count": 72}


def test_of_different_cards_only_that_of_the_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_cards(monkeypatch, (SMALL, a_gpu()), **A10) == (SMALL,)
    assert on_cards(monkeypatch, (a_gpu(), SMALL), **A10) == (SMALL,)


def test_a_card_that_nobody_listed_is_described_by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    (card,) = on_cards(monkeypatch, (a_gpu(), a_gpu(sku="NVIDIA H200")), **A10)
    assert card == altered(SMALL, memory_bytes=23 << 30)


def test_equal_cards_need_no_question() -> None:
    environment = an_environment(node=a_node(gpus=(a_gpu(), a_gpu())))
    assert observe_here(environment, OnCard()).node.gpus == (a_gpu(), a_gpu())


def test_a_module_on_the_cpu_keeps_every_card_in_view() -> None:
    environment = an_environment(node=a_node(gpus=(SMALL, a_gpu())))
    assert observe_here(environment, torch.nn.Linear(2, 2)).node == environment.node


@pytest.mark.parametrize(("setting", "found"), [("tf32", "tf32"), ("ieee", "ieee")])
def test_the_precision_of_convolutions_is_its_own_fact(setting: str, found: str) -> None:
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = setting
    try:
        process = observe_process()
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    assert (process.conv_precision, process.matmul_precision) == (found, "highest")
