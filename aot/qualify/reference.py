"""The reference that decides where eager and compiled differ: the same module in float64, or what comes nearest."""

import copy
from typing import TYPE_CHECKING, Any

from aot.qualify.outputs import MOST_ELEMENTS, Trace, run_traced, state_of, widen
from aot.qualify.subject import Call
from aot.qualify.weights import kept

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

FLOAT64, FLOAT32 = "float64", "float32"


class Reference:
    """A wider copy of a module, made when first asked and only if it fits into memory.

    `float32` stands for what a module that cannot run in float64 gives: a half-precision one its float32 copy, any
    other eager's own result.
    """

    def __init__(self, module: "Module", *, memory_bytes: int, most_elements: int = MOST_ELEMENTS) -> None:
        self._module = module
        self._most_elements = most_elements
        self._memory_bytes = memory_bytes
        self._copies: dict[Any, Module | None] = {}

    def run(self, calls: tuple[Call, ...], eager: tuple[Trace, ...]) -> tuple[str, tuple[Trace, ...]]:
        """Return which reference it is, and one trace for each of the consecutive calls."""
        import torch

        for dtype in (torch.float64, torch.float32) if self._is_half() else (torch.float64,):
            traces = self._try(calls, eager, dtype)
            if traces is not None:
                return (FLOAT64 if dtype is torch.float64 else FLOAT32), traces
        return FLOAT32, eager

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
            self._copies[dtype] = None
            if self._fits():
                try:
                    self._copies[dtype] = _widened(copy.deepcopy(self._module), dtype)
                except Exception:  # modules may refuse to be copied
                    self._copies[dtype] = None
        return self._copies[dtype]

    def _fits(self) -> bool:
        """Weights in float64 and as much again for a call must leave half of the memory alone."""
        elements = sum(tensor.numel() for tensor in (*self._module.parameters(), *self._module.buffers()))
        return 16 * elements < self._memory_bytes // 2

    def _is_half(self) -> bool:
        return any(
            tensor.is_floating_point() and tensor.element_size() < 4
            for tensor in (*self._module.parameters(), *self._module.buffers())
        )


def _widened(module: "Module", dtype: Any) -> "Module":
    """Cast parameters, buffers and plain tensor attributes; `Module.to(dtype)` would make complex ones real."""
    import torch

    module = module.double() if dtype is torch.float64 else module.float()
    for part in module.modules():
        for name, value in part.__dict__.items():
            if type(value) is torch.Tensor and value.is_floating_point():
                part.__dict__[name] = value.to(dtype)
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
