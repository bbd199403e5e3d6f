"""Perturbed weights: a set that no builder has seen, written in place.

An artifact that kept a value of the builder's weights (a bias that became a literal, a packed copy of a matrix) agrees
with eager as long as the weights are the builder's. So every proof also runs with others: that is what the next
fine-tune of the architecture will bring.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch import device as Device
    from torch.nn import Module

RELATIVE, ADDED = 0.1, 0.05
FROM_ZERO = 0.02
# Elements at a time. On a CPU so few that torch keeps to one thread, also for the two draws of each: the draws take no
# more, and threads that wait for one another beside another proof made seconds into minutes. On a card, its width.
_AT_ONCE_CPU, _AT_ONCE_CARD = 1 << 14, 1 << 22
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
    """Where the tensor lies, and some of it at a time: a table of a language model in a wide type is gigabytes."""
    import torch

    flat = tensor.detach().reshape(-1)  # a copy, where it is not contiguous
    parts = flat.split(_AT_ONCE_CPU if flat.device.type == "cpu" else _AT_ONCE_CARD)
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    least, rms = _least_and_rms(part.to(wide) for part in parts)
    step = ADDED * rms if rms > 0 else FROM_ZERO
    for part in parts:
        relative, added = torch.rand((2, part.numel()), generator=generator, dtype=wide, device=part.device).mul_(2) - 1
        if rms > 0 and least >= 0:
            added = added.abs()
        values = part.to(wide)
        changed = values * (1 + RELATIVE * relative) + step * added
        part.copy_(torch.where(_is_plain(values), changed, values))
    tensor.copy_(flat.reshape(tensor.shape))


def _least_and_rms(parts: "Iterable[Tensor]") -> tuple[float, float]:
    """Of all that is a quantity; infinity and 0.0 where nothing is."""
    import torch

    least, squares, plain = float("inf"), 0.0, 0
    for part in parts:
        is_plain = _is_plain(part)
        values = part if bool(is_plain.all()) else part[is_plain]
        if values.numel():
            least = min(least, float(values.min()))
            # Squared in the wider type: in the other those of quantities below 1e-23 are nothing.
            squares += float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
            plain += values.numel()
    return least, (squares / plain) ** 0.5 if plain else 0.0


def _is_plain(values: "Tensor") -> "Tensor":
    return values.abs() < EXTREME  # which neither NaN nor an infinity is
