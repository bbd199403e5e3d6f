"""A diffusion transformer in DiT-L/2's layout, plain torch: 24 blocks, width 1024, 458 M parameters, random weights.

One denoising step: latents of 32 x 32, a time step and a class condition every block through its own modulation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PATCH, CHANNELS, CLASSES, STEPS_WIDTH = 2, 4, 1000, 256


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    heads: int
    latent: int


SIZES = {"full": Size(1024, 24, 16, 32), "tiny": Size(64, 2, 4, 8)}


def modulate(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return hidden * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the condition (batch, width)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_attention = nn.LayerNorm(size.width, elementwise_affine=False, eps=1e-6)
        self.norm_feed = nn.LayerNorm(size.width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)
        self.modulation = nn.Linear(size.width, 6 * size.width)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.modulation(functional.silu(condition)).chunk(6, dim=1)
        heads = self.qkv(modulate(self.norm_attention(hidden), parts[0], parts[1]))
        query, key, value = heads.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + parts[2][:, None] * self.out(attended)
        feed = functional.gelu(self.up(modulate(self.norm_feed(hidden), parts[3], parts[4])), approximate="tanh")
        return hidden + parts[5][:, None] * self.down(feed)


class DiffusionTransformer(nn.Module):
    """Latents (batch, 4, side, side), time steps (batch,) and classes (batch,) to noise and variance."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.side = size.latent // PATCH
        self.patches = nn.Conv2d(CHANNELS, size.width, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn(1, self.side**2, size.width) * 0.02)
        self.steps = nn.Sequential(nn.Linear(STEPS_WIDTH, size.width), nn.SiLU(), nn.Linear(size.width, size.width))
        self.classes = nn.Embedding(CLASSES + 1, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(size.width, 2 * size.width)
        self.out = nn.Linear(size.width, PATCH * PATCH * 2 * CHANNELS)

    def forward(self, latents: Tensor, step: Tensor, label: Tensor) -> Tensor:
        hidden = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        half = STEPS_WIDTH // 2
        rates = torch.exp(torch.arange(half, device=step.device, dtype=torch.float32) * (-9.210340371976184 / half))
        angles = step.to(torch.float32)[:, None] * rates[None]
        condition = self.steps(torch.cat((angles.cos(), angles.sin()), dim=1).to(latents.dtype)) + self.classes(label)
        for block in self.blocks:
            hidden = block(hidden, condition)
        shift, scale = self.modulation(functional.silu(condition)).chunk(2, dim=1)
        patches = self.out(modulate(self.norm(hidden), shift, scale))
        patches = patches.view(-1, self.side, self.side, PATCH, PATCH, 2 * CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return patches.reshape(-1, 2 * CHANNELS, self.side * PATCH, self.side * PATCH)


def build_module(*, size: str = "full") -> DiffusionTransformer:
    torch.manual_seed(0)
    return DiffusionTransformer(SIZES[size]).eval()


def example_inputs(batch: int = 1, *, size: str = "full") -> tuple[Tensor, Tensor, Tensor]:
    generator, side = torch.Generator().manual_seed(0), SIZES[size].latent
    latents = torch.randn(batch, CHANNELS, side, side, generator=generator)
    steps = torch.randint(0, 1000, (batch,), generator=generator)
    return latents, steps, torch.randint(0, CLASSES, (batch,), generator=generator)


def make(size: str, dtype: torch.dtype) -> dict[str, object]:
    latents, steps, labels = example_inputs(1, size=size)
    return {
        "module": build_module(size=size).to(dtype),
        "args": (latents.to(dtype), steps, labels),
        "dimensions": {"batch": {"buckets": [1, 16]}},
        "dynamic_shapes": {"latents": {0: "batch"}, "step": {0: "batch"}, "label": {0: "batch"}},
    }


def build_bf16() -> dict[str, object]:
    return make("full", torch.bfloat16)


def build_tiny() -> dict[str, object]:
    return make("tiny", torch.float32)
