"""A decoder of Llama's type in plain torch: 16 layers, width 2048, 1.2 B parameters, seeded random weights.

Rotary positions, grouped-query attention, gated feed-forward, RMS norms, tied embeddings, and a static KV cache that
the module holds as buffers, for 16 sequences. One forward, two programs: `prefill` answers for a prompt, `decode` for
one token at a position that is a tensor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCHES = (1, 16)


@dataclass(frozen=True)
class Size:
    """Widths of one model; `context` is how many positions the cache holds, `prompt` how many a prefill has."""

    width: int
    layers: int
    heads: int
    groups: int
    feed: int
    vocabulary: int
    context: int
    prompt: int


SIZES = {
    "full": Size(2048, 16, 32, 8, 8192, 128256, 1024, 512),
    "tiny": Size(64, 2, 4, 2, 128, 500, 32, 16),
}


def rotate(heads: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding of (batch, length, heads, dim) at `positions` (length,)."""
    half = heads.shape[-1] // 2
    steps = torch.arange(half, device=heads.device, dtype=torch.float32) / half
    angles = positions.to(torch.float32)[:, None] * torch.pow(500000.0, -steps)[None]
    cosine, sine = (part[:, None, :].to(heads.dtype) for part in (angles.cos(), angles.sin()))
    left, right = heads[..., :half], heads[..., half:]
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Block(nn.Module):
    """Attention over the cache and feed-forward; (batch, length, width) in and out, `positions` (length,) int64."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.groups, self.dim = size.heads, size.groups, size.width // size.heads
        self.norm_attention = nn.RMSNorm(size.width, eps=1e-5)
        self.norm_feed = nn.RMSNorm(size.width, eps=1e-5)
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, size.groups * self.dim, bias=False)
        self.value = nn.Linear(size.width, size.groups * self.dim, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.gate = nn.Linear(size.width, size.feed, bias=False)
        self.up = nn.Linear(size.width, size.feed, bias=False)
        self.down = nn.Linear(size.feed, size.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(max(BATCHES), size.context, size.groups, self.dim))

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        hidden = hidden + self.out(self.attend(self.norm_attention(hidden), positions))
        feed = self.norm_feed(hidden)
        return hidden + self.down(functional.silu(self.gate(feed)) * self.up(feed))

    def attend(self, hidden: Tensor, positions: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        query = rotate(self.query(hidden).view(batch, length, self.heads, self.dim), positions)
        key = rotate(self.key(hidden).view(batch, length, self.groups, self.dim), positions)
        value = self.value(hidden).view(batch, length, self.groups, self.dim)
        # One write into the whole buffer, not into a slice of it: that stays in place when it is compiled.
        rows = torch.arange(batch, device=hidden.device)[:, None]
        self.keys.index_put_((rows, positions[None]), key)
        self.values.index_put_((rows, positions[None]), value)
        if length > 1:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return attended.transpose(1, 2).reshape(batch, length, width)
        query = query.view(batch, self.groups, self.heads // self.groups, self.dim)
        scores = query @ self.keys[:batch].permute(0, 2, 3, 1) * self.dim**-0.5
        later = torch.arange(self.keys.shape[1], device=hidden.device) > positions
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        return (weights @ self.values[:batch].transpose(1, 2)).reshape(batch, length, width)


class Llama(nn.Module):
    """Token ids (batch, length) and positions (length,), both int64, to logits (batch, vocabulary) of the last one."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        for block in self.blocks:
            hidden = block(hidden, positions)
        return self.head(self.norm(hidden[:, -1]))


def build_module(*, size: str = "full") -> Llama:
    torch.manual_seed(0)
    module = Llama(SIZES[size]).eval()
    nn.init.normal_(module.tokens.weight, std=0.02)
    return module


def example_inputs(batch: int = 1, *, size: str = "full", program: str = "prefill") -> tuple[Tensor, Tensor]:
    chosen = SIZES[size]
    length = chosen.prompt if program == "prefill" else 1
    ids = torch.randint(0, chosen.vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(length) if program == "prefill" else torch.tensor([chosen.prompt])


def make(program: str, size: str, dtype: torch.dtype) -> dict[str, object]:
    return {
        "module": build_module(size=size).to(dtype),
        "args": example_inputs(1, size=size, program=program),
        "dimensions": {"batch": {"buckets": list(BATCHES)}},
        "dynamic_shapes": {"ids": {0: "batch"}, "positions": None},
    }


def prefill_bf16() -> dict[str, object]:
    return make("prefill", "full", torch.bfloat16)


def prefill_tiny() -> dict[str, object]:
    return make("prefill", "tiny", torch.float32)


def decode_bf16() -> dict[str, object]:
    return make("decode", "full", torch.bfloat16)


def decode_tiny() -> dict[str, object]:
    return make("decode", "tiny", torch.float32)
