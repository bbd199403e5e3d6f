"""Perturbed weights: a set that no builder has seen, written in place.

An artifact that kept a value of the builder's weights (a bias that became a literal, a packed copy of a matrix) agrees
with eager as long as the weights are the builder's. So every proof also runs with others: that is what the next
fine-tune of the architecture will bring.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch import device as Device
    from torch.nn import Module

RELATIVE, ADDED = 0.1, 0.05
FROM_ZERO = 0.02
_AT_ONCE = 1 << 22  # elements
EXTREME = 1e4  # beyond it a value is a marker (a mask's lowest number), not a quantity


def perturb(module: "Module", *, seed: int) -> int:
    """Change every float parameter and buffer in place, the smallest included; return how many were changed.

    w becomes w * (1 + 0.1 u) + 0.05 v * rms(w) with u, v uniform in [-1, 1], and 0.02 v where all of w is zero. A
    tensor without a negative entry keeps none (variances); markers beyond 1e4 stay, and so does what is not finite.
    """
    import torch

    changed = 0
    with torch.no_grad():
        # Both iterators give a shared tensor once.
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
                plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                _perturb_one(plain, generator_for(name, seed, plain.device))
                changed += 1
    return changed


def generator_for(name: str, seed: int, device: "Device") -> "Generator":
    """Return a generator that depends on nothing but a tensor's name, `seed`, and where it draws."""
    import torch

    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")
    return torch.Generator(device).manual_seed(number >> 1)


@contextmanager
def kept(tensors: Sequence["Tensor"]) -> Iterator[None]:
    """Give the tensors their present values back at the end, in place."""
    import torch

    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)


def _perturb_one(tensor: "Tensor", generator: "Generator") -> None:
    """Where the tensor lies, and some of it at a time: a table of a language model in float64 is gigabytes."""
    import torch

    flat = tensor.detach().reshape(-1)  # a copy, where it is not contiguous
    least, squares, plain = float("inf"), 0.0, 0
    for part in flat.split(_AT_ONCE):
        values = _plain_of(part.double())
        if values.numel():
            least, squares = min(least, float(values.min())), squares + float(values.square().sum())
            plain += values.numel()
    if not plain:
        return
    rms = (squares / plain) ** 0.5
    step = ADDED * rms if rms > 0 else FROM_ZERO
    for part in flat.split(_AT_ONCE):
        drawn = torch.rand((2, part.numel()), generator=generator, dtype=torch.float64, device=part.device)
        relative, added = drawn * 2 - 1
        if rms > 0 and least >= 0:
            added = added.abs()
        values = part.double()
        changed = values * (1 + RELATIVE * relative) + step * added
        part.copy_(torch.where(_is_plain(values), changed, values))
    tensor.copy_(flat.reshape(tensor.shape))


def _is_plain(values: "Tensor") -> "Tensor":
    return values.isfinite() & (values.abs() < EXTREME)


def _plain_of(values: "Tensor") -> "Tensor":
    return values[_is_plain(values)]
