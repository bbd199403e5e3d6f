"""A CompiledModel over the life of its module: the hand-written object's modules, and how they are loaded and called.

`f(x) = x * scale + calls` after `calls += 1`, so that eager and compiled differ where a test needs it. What a real
build adds, calling conventions and every kind of constant, is in `test_compiled_build.py`.
"""

from typing import Any

import torch
from torch import nn

from aot.bundle import StoredBundle
from aot.runtime.compiled import CompiledModel
from aot.runtime.load import load_bundle
from aot.schema.artifact import ConstantKind, ConstantMeta

NOT_WRITTEN = tuple(
    ConstantMeta(name=name, kind=kind, dtype="float32", shape=(size,), stride=(1,))
    for name, kind, size in (("scale", ConstantKind.PARAMETER, 4), ("calls", ConstantKind.BUFFER, 1))
)


class Scaled(nn.Module):
    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), scale), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * self.scale + self.calls


def scaled(scale: float = 1.5) -> Scaled:
    return Scaled(scale).eval()


def load(bundle: StoredBundle, module: nn.Module, **options: Any) -> CompiledModel:
    return load_bundle(bundle.directory, module, **options)


def x(rows: int = 3) -> torch.Tensor:
    return torch.arange(rows * 4, dtype=torch.float32).reshape(rows, 4)


def was_compiled(model: CompiledModel, *, rows: int = 3) -> bool:
    """Call it, insist on the right result, and say how it came about."""
    before, calls = model.counters["compiled"], model.module.calls.clone()
    found = model(x(rows).to(model.module.scale.dtype))
    assert torch.equal(found, x(rows).to(found.dtype) * model.module.scale + calls + 1)
    assert torch.equal(model.module.calls, calls + 1), "the buffer was written once"
    return model.counters["compiled"] == before + 1
