"""BERT-base's encoder in plain torch: 12 layers, width 768, 109 M parameters, seeded random weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int


SIZES = {"full": Size(768, 12, 12, 30522, 128), "tiny": Size(64, 2, 4, 500, 16)}


class Layer(nn.Module):
    """Attention and feed-forward, each with its norm after it; `mask` (batch, 1, 1, length) is true for tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width) for _ in range(4))
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)
        self.norm_attention = nn.LayerNorm(size.width, eps=1e-12)
        self.norm_feed = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = (one(hidden).view(batch, length, self.heads, -1) for one in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        hidden = self.norm_attention(hidden + self.out(attended))
        return self.norm_feed(hidden + self.down(functional.gelu(self.up(hidden))))


class Bert(nn.Module):
    """Token ids and mask, both (batch, length) int64, to hidden states (batch, length, width)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(512, size.width)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.norm(self.tokens(ids) + self.positions.weight[: ids.shape[1]])
        present = mask.to(torch.bool)[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, present)
        return hidden


def build_module(*, size: str = "full") -> Bert:
    torch.manual_seed(0)
    return Bert(SIZES[size]).eval()


def example_inputs(batch: int = 1, *, size: str = "full") -> tuple[Tensor, Tensor]:
    shape = (batch, SIZES[size].length)
    ids = torch.randint(0, SIZES[size].vocabulary, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(shape, dtype=torch.int64)
    mask[:, -3:] = 0
    return ids, mask


def make(size: str, dtype: torch.dtype) -> dict[str, object]:
    return {
        "module": build_module(size=size).to(dtype),
        "args": example_inputs(1, size=size),
        "dimensions": {"batch": {"buckets": [1, 16]}},
        "dynamic_shapes": {"ids": {0: "batch"}, "mask": {0: "batch"}},
    }


def build_bf16() -> dict[str, object]:
    return make("full", torch.bfloat16)


def build_tiny() -> dict[str, object]:
    return make("tiny", torch.float32)
