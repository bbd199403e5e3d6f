"""Programs that the route `package` refuses by name, before export and after it."""

from typing import Any

import pytest
import torch
from torch import nn

from aot.compile.program import Example, Program
from aot.compile.refuse import random_nodes, refuse_program, refuse_random, refuse_state
from aot.errors import SourceNotExportable
from aot.schema.recipe import Randomness, Recipe

X = torch.ones(2, 4)


class Subclass(torch.Tensor):
    pass


class Holder(nn.Module):
    """A module with one part that the test is about."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        if isinstance(part, nn.Module):
            self.part = part
        elif isinstance(part, nn.Parameter):
            self.weight = part
        else:
            self.register_buffer("weight", part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def of(part: Any, *args: Any) -> Program:
    return Program(module=Holder(part), examples=(Example(args or (X,), {}),))


class FSDPModule(nn.Linear):
    """Stands for torch's: it is known by its name."""


class DTensor(torch.Tensor):
    """Stands for torch's: it is known by its name."""


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (torch.jit.trace(nn.Linear(4, 4), X), "part (TopLevelTracedModule) is a ScriptModule"),
        (nn.DataParallel(nn.Linear(4, 4)), "part (DataParallel) is a data-parallel wrapper"),
        (FSDPModule(4, 4), "part (FSDPModule) is sharded by FSDP"),
        (torch.ao.nn.quantized.ReLU6(), "eager-mode quantization"),
        (nn.LazyLinear(4), "part.weight is not initialized yet"),
        (nn.Parameter(torch.ones(2).as_subclass(Subclass)), "weight is a tensor subclass"),
        (torch.ones(2).as_subclass(DTensor), "weight is a DTensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "weight is a quantized tensor"),
        (torch.eye(2).to_sparse(), "weight is of layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "weight is on the meta device"),
    ],
)
def test_a_part_that_cannot_be_carried_is_named(part: Any, message: str) -> None:
    with pytest.raises(SourceNotExportable) as caught:
        refuse_program(of(part))
    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.details["name"]


def test_a_compiled_module_is_refused() -> None:
    with pytest.raises(SourceNotExportable, match=r"result of torch\.compile"):
        refuse_program(of(torch.compile(nn.Linear(4, 4))))


@pytest.mark.parametrize("value", [torch.eye(2).to_sparse(), X.as_subclass(Subclass)])
def test_an_input_that_cannot_be_carried_is_named(value: torch.Tensor) -> None:
    with pytest.raises(SourceNotExportable, match=r"input \[0\]\[0\]\['x'\] of example 0"):
        refuse_program(of(nn.Linear(4, 4), {"x": value}))


def test_a_plain_module_is_let_through() -> None:
    refuse_program(of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), X, None, 3, "text"))


class Draws(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(x)


def graph_of(draw: Any, *, train: bool = False) -> torch.fx.GraphModule:
    module = draw if isinstance(draw, nn.Module) else Draws(draw)
    return torch.export.export(module.train(train), (X,)).graph_module


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(1, 1, 2, 4)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=self.dropout)


@pytest.mark.parametrize(
    ("graph", "operation"),
    [
        (graph_of(lambda x: x + torch.rand_like(x)), "aten.rand_like.default"),
        (graph_of(lambda x: torch.bernoulli(x)), "aten.bernoulli.default"),
        (graph_of(lambda x: torch.multinomial(x, 1)), "aten.multinomial.default"),
        (graph_of(lambda x: x + torch.randn(2, 4)), "aten.randn.default"),
        (graph_of(nn.Dropout(0.5), train=True), "aten.dropout.default"),
        (graph_of(Attention(0.1)), "aten.scaled_dot_product_attention.default"),
    ],
)
def test_a_program_that_draws_random_numbers_is_refused(graph: torch.fx.GraphModule, operation: str) -> None:
    with pytest.raises(SourceNotExportable, match="draws random numbers") as caught:
        refuse_random(graph, Recipe(), region="")
    assert caught.value.details["operations"] == [operation]


def test_random_numbers_may_be_allowed_and_are_then_named() -> None:
    graph = graph_of(lambda x: x + torch.rand_like(x))
    assert refuse_random(graph, Recipe(random=Randomness.UNCHECKED), region="") == ("aten.rand_like.default",)


@pytest.mark.parametrize(
    "module",
    [nn.Dropout(0.5), nn.Dropout(0.0), Attention(0.0), nn.RReLU(), nn.TransformerEncoderLayer(4, 2, dropout=0.5)],
)
def test_dropout_in_eval_mode_draws_nothing(module: nn.Module) -> None:
    graph = graph_of(module.eval())
    assert list(random_nodes(graph)) == []


def test_an_lstm_with_dropout_between_its_layers_draws_nothing_in_eval_mode() -> None:
    assert list(random_nodes(graph_of(nn.LSTM(4, 4, num_layers=2, dropout=0.5)))) == []


def test_a_program_with_state_cannot_be_frozen() -> None:
    refuse_state((), region="")
    with pytest.raises(SourceNotExportable, match="writes into calls, running") as caught:
        refuse_state({"running", "calls"}, region="Block")
    assert caught.value.details == {"region": "Block", "buffers": ["calls", "running"]}
