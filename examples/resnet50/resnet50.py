"""A network in ResNet-50's layout, plain torch, 25.6 M parameters, images of 224 x 224, seeded random weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    stem: int
    blocks: tuple[int, ...]
    image: int


SIZES = {"full": Size(64, (3, 4, 6, 3), 224), "tiny": Size(8, (1, 1), 32)}


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm and a shortcut; the 3x3 one has the stride."""

    def __init__(self, inner: int, middle: int, stride: int) -> None:
        super().__init__()
        outer = 4 * middle
        self.first = nn.Conv2d(inner, middle, 1, bias=False)
        self.second = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.third = nn.Conv2d(middle, outer, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(middle), nn.BatchNorm2d(middle)
        self.third_norm = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, image: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(image)))
        hidden = functional.relu(self.second_norm(self.second(hidden)))
        return functional.relu(self.third_norm(self.third(hidden)) + self.shortcut(image))


class ResNet(nn.Module):
    """Images (batch, 3, height, width) to logits (batch, 1000)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, size.stem, 7, 2, 3, bias=False), nn.BatchNorm2d(size.stem), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inner = [], size.stem
        for stage, count in enumerate(size.blocks):
            for number in range(count):
                middle = size.stem << stage
                blocks.append(Bottleneck(inner, middle, 2 if stage and not number else 1))
                inner = 4 * middle
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


def build_module(*, size: str = "full") -> ResNet:
    torch.manual_seed(0)
    return ResNet(SIZES[size]).eval()


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


def changed(size: str, dtype: torch.dtype) -> dict[str, object]:
    """The same with a narrower middle of the last block, which is all that a second build has to tune anew."""
    found = make(size, dtype)
    module = found["module"]
    assert isinstance(module, ResNet)
    inner = module.blocks[-1].first.in_channels
    plan = SIZES[size]
    middle = plan.stem << (len(plan.blocks) - 1)
    block = module.blocks[-1]
    narrow = middle * 3 // 4
    block.first, block.first_norm = nn.Conv2d(inner, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
    block.second = nn.Conv2d(narrow, narrow, 3, block.second.stride, 1, bias=False)
    block.second_norm, block.third = nn.BatchNorm2d(narrow), nn.Conv2d(narrow, 4 * middle, 1, bias=False)
    module.to(dtype).eval()
    return found


def changed_bf16() -> dict[str, object]:
    return changed("full", torch.bfloat16)


def changed_tiny() -> dict[str, object]:
    return changed("tiny", torch.float32)
