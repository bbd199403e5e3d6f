"""A stack of equal transformer blocks (width 256, 4 heads), 6 to 24 of them, to show what regions are worth.

`build32_narrow` is 32 blocks by themselves that compute next to nothing, for measuring what surrounds them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, VOCABULARY = 256, 4, 5000


class Block(nn.Module):
    """Pre-norm attention and feed-forward; (batch, length, width) in and out."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.norm_feed = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        heads = self.qkv(self.norm_attention(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(functional.gelu(self.up(self.norm_feed(hidden))))


class Stack(nn.Module):
    """Token ids (batch, length) int64 to logits."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def make(layers: int) -> dict[str, object]:
    torch.manual_seed(0)
    return {
        "module": Stack(layers).eval(),
        "args": (torch.randint(0, VOCABULARY, (2, 64)),),
        "dimensions": {"batch": (2, 16)},
        "dynamic_shapes": {"ids": {0: "batch"}},
    }


def build6() -> dict[str, object]:
    return make(6)


def build12() -> dict[str, object]:
    return make(12)


def build24() -> dict[str, object]:
    return make(24)


def build32_narrow() -> dict[str, object]:
    """(batch, length, 16) float32 through 32 blocks of two heads."""
    torch.manual_seed(0)
    return {
        "module": nn.Sequential(*(Block(16, 2) for _ in range(32))).eval(),
        "args": (torch.randn(1, 2, 16),),
        "dimensions": {"batch": (1, 64)},
        "dynamic_shapes": {"input": {0: "batch"}},
    }
