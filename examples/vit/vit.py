"""ViT-B/16 in plain torch: 12 layers, width 768, 86 M parameters, images of 224 x 224, seeded random weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    image: int
    patch: int = 16


SIZES = {"full": Size(768, 12, 12, 224), "tiny": Size(64, 2, 4, 64)}


class Block(nn.Module):
    """Pre-norm attention and feed-forward; (batch, length, width) in and out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_attention = nn.LayerNorm(size.width, eps=1e-6)
        self.norm_feed = nn.LayerNorm(size.width, eps=1e-6)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        heads = self.qkv(self.norm_attention(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(functional.gelu(self.up(self.norm_feed(hidden))))


class VisionTransformer(nn.Module):
    """Images (batch, 3, height, width) to logits (batch, 1000), from the class token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.width, size.patch, size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.positions = nn.Parameter(torch.randn(1, (size.image // size.patch) ** 2 + 1, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, eps=1e-6)
        self.head = nn.Linear(size.width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        hidden = torch.cat((self.class_token.expand(tokens.shape[0], -1, -1), tokens), dim=1) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden)[:, 0])


def build_module(*, size: str = "full") -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(SIZES[size]).eval()


def example_inputs(batch: int = 1, *, size: str = "full") -> tuple[Tensor]:
    side = SIZES[size].image
    return (torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0)),)


def make(size: str, dtype: torch.dtype) -> dict[str, object]:
    return {
        "module": build_module(size=size).to(dtype),
        "args": tuple(value.to(dtype) for value in example_inputs(1, size=size)),
        "dimensions": {"batch": {"buckets": [1, 16]}},
        "dynamic_shapes": {"image": {0: "batch"}},
    }


def build_bf16() -> dict[str, object]:
    return make("full", torch.bfloat16)


def build_tiny() -> dict[str, object]:
    return make("tiny", torch.float32)
