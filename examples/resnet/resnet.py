"""A network in ResNet-18's layout, plain torch, seeded random weights, for images of 160 x 160."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut; `stride` halves height and width where it is 2."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, image: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(image)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(image))


class ResNet(nn.Module):
    """Images (batch, 3, height, width) float32 to logits (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Residual(inner, outer, 1 if outer == 64 else 2), Residual(outer, outer, 1))
                for inner, outer in pairwise(widths)
            )
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(image)).mean((2, 3)))


def build_module(*, seed: int = 0) -> ResNet:
    torch.manual_seed(seed)
    return ResNet().eval()


def example_inputs(batch: int = 2, size: int = 160) -> tuple[Tensor]:
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0)),)


def build() -> dict[str, object]:
    return {
        "module": build_module(),
        "args": example_inputs(),
        "dimensions": {"batch": (1, 16)},
        "dynamic_shapes": {"image": {0: "batch"}},
    }
