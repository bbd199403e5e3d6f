"""How a first call is copied and compared: layouts stay, rounding is no difference, and what is no number is equal."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aot.runtime.trial import UNLIKE, _copies, _difference, _share_memory, _State, try_first_call

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(8, 6)[::2, 1:4],
        torch.randn(1, 3, 1).expand(4, 3, 5),
        torch.tensor(2.0),
        torch.zeros(0, 4),
        torch.randn(2, 2, requires_grad=True),
        torch.arange(6).reshape(2, 3),
    ],
)
def test_a_copy_has_the_layout_and_a_memory_of_its_own(tensor: torch.Tensor) -> None:
    (copied,) = _copies((tensor,))
    assert torch.equal(copied, tensor)
    assert (copied.stride(), copied.dtype, copied.requires_grad) == (
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )
    assert not tensor.numel() or not _share_memory(copied, tensor)


def test_what_is_no_tensor_is_handed_on() -> None:
    assert _copies(((1, None), {"mode": "x"})) == ((1, None), {"mode": "x"})


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([torch.ones(4)], [torch.ones(4) + 1e-6]),
        ([torch.tensor([NAN, 1.0, INF])], [torch.tensor([NAN, 1.0, INF])]),
        ([torch.tensor([3]), 7, None], [torch.tensor([3]), 7, None]),
        ([torch.zeros(0)], [torch.zeros(0)]),
        ([torch.ones(4, dtype=torch.bfloat16)], [torch.ones(4, dtype=torch.bfloat16) + 2**-7]),
    ],
)
def test_what_rounding_explains_agrees(found: list[object], wanted: list[object]) -> None:
    assert _difference(found, wanted) == ""


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        ([torch.ones(4)], [torch.full((4,), 1.01)], "output 0: largest error 0.01"),
        ([torch.tensor([NAN, 1.0])], [torch.ones(2)], "output 0: NaN or infinity at other places"),
        ([torch.tensor([INF, 1.0])], [torch.tensor([-INF, 1.0])], "output 0: NaN or infinity at other places"),
        ([torch.tensor([3])], [torch.tensor([4])], "output 0: 1 of 1 values differ"),
        ([torch.ones(2)], [torch.ones(3)], "output 0: wanted torch.float32 of shape (3,)"),
        ([torch.ones(2)], [torch.ones(2).double()], "output 0: wanted torch.float64"),
        ([torch.ones(2), 7], [torch.ones(2), 8], "output 1 is 7, eagerly 8"),
        ([torch.ones(2)], [torch.ones(2), 8], "1 outputs, eagerly 2"),
    ],
)
def test_what_rounding_does_not_explain_is_told(found: list[object], wanted: list[object], reason: str) -> None:
    assert _difference(found, wanted).startswith(reason)


def a_module_with_buffers() -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("table", torch.arange(4.0).expand(3, 4))
    module.register_buffer("cache", torch.zeros(1024))
    module.register_buffer("rest", torch.tensor([NAN, 1.0]))
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    module.register_buffer("nowhere", torch.zeros(2, device="meta"))
    return module


def test_what_is_not_written_is_neither_told_nor_restored() -> None:
    module = a_module_with_buffers()
    state = _State(module)
    versions = [one._version for one in module.buffers()]
    state.restore()
    assert (state.written(), state.difference({})) == ({}, "")
    assert [one._version for one in module.buffers()] == versions


def test_what_is_written_is_restored_in_the_same_tensors_also_where_they_repeat() -> None:
    module = a_module_with_buffers()
    table, rest, state = module.table, module.rest, _State(module)
    table[:1].add_(1)
    module.rest = torch.zeros(5)
    module.more = torch.nn.Buffer(torch.ones(1))
    assert state.written().keys() == {"table", "rest", "more"}
    state.restore()
    assert state.written() == {}
    assert module.table is table and module.rest is rest and "more" not in module._buffers


def test_only_elements_that_were_written_are_compared() -> None:
    module = a_module_with_buffers()
    state = _State(module)
    module.cache[0] = 1.0
    written = state.written()
    module.cache[0] = 1.0001
    assert state.difference(written) == "", "rounding, by the magnitude of what was written"
    module.cache[0] = 1.01
    assert state.difference(written).startswith("buffer cache: largest error 0.01")
    state.restore()
    assert state.difference(written) == "buffer cache is written by compiled code, and not eagerly"


class Counting(torch.nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


class CompiledUnit:
    """Stands for a unit whose artifact, by its manifest, writes nothing."""

    def __init__(self, module: torch.nn.Module, compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
        variant = SimpleNamespace(writes=False)
        self._bound = SimpleNamespace(forms=(SimpleNamespace(variants=(variant,)),), is_current=lambda: True)
        self.module, self._compiled, self.reason = module, compiled, ""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (self.module if self.reason else self._compiled)(*args, **kwargs)

    def abandon(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(
    ("compiled", "reason"),
    [
        (lambda x: x * 2, "buffer calls is written eagerly, and not by compiled code"),
        (lambda x: x * 3, "output 0: largest error 1"),
    ],
)
def test_a_write_of_the_eager_run_is_taken_back_before_the_call_is_made(
    compiled: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    unit = CompiledUnit(Counting(), compiled)
    try_first_call(unit)  # type: ignore[arg-type]
    for call in (1, 2):
        assert torch.equal(unit.call((torch.ones(2),), {}), torch.full((2,), 2.0))
        assert unit.module.calls.item() == call
    assert unit.reason.startswith(f"{UNLIKE}: {reason}")
