"""Small perceptrons, for measuring what surrounds a model.

`build` is tiny, `build_wide` computes a millisecond, `build_deep` has a hundred tensors.
"""

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Two inputs (batch, width) float32, added, through three layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 4))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layers(left + right)


def build_module(*, random_weights: bool = False) -> Perceptron:
    """The module of `build`, or one with weights that no build has seen."""
    torch.manual_seed(1 if random_weights else 0)
    return Perceptron(16, 3).eval()


def example_inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 16), torch.randn(2, 16)


def make(width: int, batch: int, *, depth: int = 3) -> dict[str, object]:
    torch.manual_seed(0)
    return {
        "module": Perceptron(width, depth).eval(),
        "args": (torch.randn(batch, width), torch.randn(batch, width)),
        "dimensions": {"batch": (1, 64)},
        "dynamic_shapes": {"left": {0: "batch"}, "right": {0: "batch"}},
    }


def build() -> dict[str, object]:
    return make(16, 2)


def build_wide() -> dict[str, object]:
    return make(512, 32)


def build_deep() -> dict[str, object]:
    return make(16, 2, depth=50)
