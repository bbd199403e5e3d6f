"""The reference that decides where eager and compiled differ: the same module in float64, or what comes nearest."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aot.qualify.outputs import MOST_ELEMENTS, Trace, run_traced, state_of, widen
from aot.qualify.streamed import stream, widen_attributes
from aot.qualify.subject import Call
from aot.qualify.weights import kept

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

FLOAT64, FLOAT32, EAGER = "float64", "float32", "eager"


class Reference:
    """A wider copy of a module, made when first asked: whole where it fits into memory, else wide part by part.

    `float32` stands for what a module that cannot run in float64 gives: a half-precision one its float32 copy, any
    other eager's own result. `eager` stands for a half-precision one that can run in neither.
    """

    def __init__(self, module: "Module", *, memory_bytes: int, most_elements: int = MOST_ELEMENTS) -> None:
        """`memory_bytes` is the limit of this process; on a card the free memory of the card counts."""
        self._module = module
        self._most_elements = most_elements
        self._memory_bytes = memory_bytes
        self._copies: dict[Any, Module | None] = {}

    def run(self, calls: tuple[Call, ...], eager: tuple[Trace, ...]) -> tuple[str, tuple[Trace, ...]]:
        """Return which reference it is, and one trace for each of the consecutive calls."""
        import torch

        is_half = self._is_half()
        for dtype in (torch.float64, torch.float32) if is_half else (torch.float64,):
            traces = self._try(calls, eager, dtype)
            if traces is not None:
                return (FLOAT64 if dtype is torch.float64 else FLOAT32), traces
        return (EAGER if is_half else FLOAT32), eager

    def _try(self, calls: tuple[Call, ...], eager: tuple[Trace, ...], dtype: Any) -> tuple[Trace, ...] | None:
        module = self._copy(dtype)
        if module is None:
            return None
        state = state_of(module)
        try:
            with kept(tuple(state.values())):
                traces = tuple(
                    run_traced(module, widen(call, dtype), state, most_elements=self._most_elements) for call in calls
                )
        except Exception:  # a type that is written into the code, an operation without a float64 kernel
            self._copies[dtype] = None
            return None
        return tuple(_completed(trace, base) for trace, base in zip(traces, eager, strict=True))

    def _copy(self, dtype: Any) -> "Module | None":
        if dtype not in self._copies:
            try:
                self._copies[dtype] = self._made(dtype)
            except Exception:  # modules may refuse to be copied
                self._copies[dtype] = None
        return self._copies[dtype]

    def _made(self, dtype: Any) -> "Module | None":
        """Weights in `dtype` and as much again for a call must fit into the room."""
        room = self._room_bytes()
        elements = sum(tensor.numel() for tensor in self._tensors())
        if 2 * dtype.itemsize * elements < room:
            return _widened(copy.deepcopy(self._module), dtype)
        return stream(self._module, dtype, room_bytes=room)

    def _room_bytes(self) -> int:
        """Half of the process's memory; on a card what is free there, and what torch holds without using it."""
        import torch

        device = next((tensor.device for tensor in self._tensors()), None)
        if device is None or device.type != "cuda":
            return self._memory_bytes // 2
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)

    def _is_half(self) -> bool:
        return any(tensor.is_floating_point() and tensor.element_size() < 4 for tensor in self._tensors())

    def _tensors(self) -> "Iterator[Tensor]":
        yield from self._module.parameters()
        yield from self._module.buffers()


def _widened(module: "Module", dtype: Any) -> "Module":
    """Cast parameters, buffers and plain tensor attributes; `Module.to(dtype)` would make complex ones real."""
    import torch

    module = module.double() if dtype is torch.float64 else module.float()
    widen_attributes(module, dtype)
    return module


def _completed(trace: Trace, eager: Trace) -> Trace:
    """Use eager's own leaf where the reference has none of that shape, and for integers, which must be equal anyway."""
    leaves = {
        name: trace.leaves[name]
        if name in trace.leaves and trace.leaves[name].shape == leaf.shape and _is_inexact(trace.leaves[name])
        else leaf
        for name, leaf in eager.leaves.items()
    }
    return Trace(trace.form, leaves)


def _is_inexact(tensor: "Tensor") -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
