"""A stack of equal transformer blocks (width 256, 4 heads), 12 or 24 of them, to show what regions are worth."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, VOCABULARY = 256, 4, 5000


class Block(nn.Module):
    """Pre-norm attention and feed-forward; (batch, length, width) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.norm_feed = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        heads = self.qkv(self.norm_attention(hidden)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
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
