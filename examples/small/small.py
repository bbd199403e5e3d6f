"""Small perceptrons and a stack of blocks, for measuring what surrounds a model.

`build` is tiny, `build_wide` computes a millisecond, `build_deep` has a hundred tensors, `build_blocks` is 32 equal
transformer blocks of 12 tensors that compute next to nothing.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Perceptron(nn.Module):
    """Two inputs (batch, width) float32, added, through three layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 4))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layers(left + right)


class Block(nn.Module):
    """Pre-norm attention of two heads and feed-forward; (batch, length, width) in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.norm_attention = nn.LayerNorm(width)
        self.norm_feed = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        heads = self.qkv(self.norm_attention(hidden)).view(batch, length, 3, 2, self.width // 2)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, self.width))
        return hidden + self.down(functional.gelu(self.up(self.norm_feed(hidden))))


class Stack(nn.Module):
    """(batch, length, width) float32 through equal blocks."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


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


def build_blocks() -> dict[str, object]:
    torch.manual_seed(0)
    return {
        "module": Stack(16, 32).eval(),
        "args": (torch.randn(1, 2, 16),),
        "dimensions": {"batch": (1, 64)},
        "dynamic_shapes": {"hidden": {0: "batch"}},
    }
