"""A GPT-2-size decoder in plain torch: 12 layers, width 768, vocabulary 50,304, seeded random weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 768, 12, 12, 50304, 1024
CHANGED_FEED = 3 * WIDTH  # of the last block, where a second build differs from a first
# Blocks of the variants that are measured on cards; "deep" has enough of them to show what regions are worth.
SIZES = {"full": LAYERS, "tiny": 1, "deep": 32, "deep_tiny": 4}


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
        return hidden + self.down(functional.gelu(self.up(self.norm_feed(hidden)), approximate="tanh"))


class Decoder(nn.Module):
    """Token ids (batch, length) int64 to logits (batch, length, vocabulary); embeddings tied."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def build_module(*, layers: int | None = None, seed: int = 0, size: str = "full") -> Decoder:
    torch.manual_seed(seed)
    return Decoder(SIZES[size] if layers is None else layers).eval()


def example_inputs(batch: int = 1, length: int = 64, *, size: str = "full") -> tuple[Tensor]:
    """Token ids of one shape, the same for every size."""
    return (torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0)),)


def build() -> dict[str, object]:
    return {
        "module": build_module(),
        "args": example_inputs(),
        "dimensions": {"batch": (1, 8), "length": (2, 256)},
        "dynamic_shapes": {"ids": {0: "batch", 1: "length"}},
    }


def make(size: str, dtype: torch.dtype) -> dict[str, object]:
    """One size with exact batches, and 64 tokens."""
    return {
        "module": build_module(size=size).to(dtype),
        "args": example_inputs(1),
        "dimensions": {"batch": {"buckets": [1, 16]}},
        "dynamic_shapes": {"ids": {0: "batch"}},
    }


def build_bf16() -> dict[str, object]:
    return make("full", torch.bfloat16)


def build_tiny() -> dict[str, object]:
    return make("tiny", torch.float32)


def deep_bf16() -> dict[str, object]:
    return make("deep", torch.bfloat16)


def deep_tiny() -> dict[str, object]:
    return make("deep_tiny", torch.float32)


def changed(size: str, dtype: torch.dtype) -> dict[str, object]:
    """The same with a narrower feed-forward in the last block, which is all that a second build has to tune anew."""
    found = make(size, dtype)
    block = found["module"].blocks[-1]
    block.up = nn.Linear(WIDTH, CHANGED_FEED, dtype=dtype).eval()
    block.down = nn.Linear(CHANGED_FEED, WIDTH, dtype=dtype).eval()
    return found


def changed_bf16() -> dict[str, object]:
    return changed("full", torch.bfloat16)


def changed_tiny() -> dict[str, object]:
    return changed("tiny", torch.float32)
