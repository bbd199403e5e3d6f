"""Synthetic weights: the same tensor from a name and a seed, on every machine and with every release of torch.

The proof computes a canary's expected outputs with them, and a pod runs the canary with them, before any weight of its
own is bound. Uniform integers are drawn and scaled: the bits of torch's normal draws depend on the CPU.
"""

import hashlib
from collections.abc import Sequence
from math import prod, sqrt
from typing import TYPE_CHECKING

from aot.schema.artifact import ConstantKind, ConstantMeta

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = 1 << 16
# Elements. From one more on torch shares an operation out among threads, which the draw before it cannot use: beside
# another proof on the host, threads that wait for one another made seconds into minutes.
_AT_ONCE = 1 << 15


def synthetic_tensor(name: str, shape: Sequence[int], dtype: str, *, seed: int) -> "Tensor":
    """Return the float tensor of that name, contiguous on the CPU.

    Matrices and larger: uniform around 0, scaled so that a layer keeps the magnitude of its input. Vectors and
    scalars: uniform in [0.5, 1.5), since scales and variances are among them.
    """
    import torch

    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(number)
    found = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    # Some at a time, the same numbers as at once: integers and float64 of a language model's table are gigabytes.
    for part in found.view(-1).split(_AT_ONCE):
        steps = torch.randint(0, _STEPS, (part.numel(),), generator=generator, dtype=torch.int64).double()
        unit = steps / _STEPS - 0.5
        part.copy_(1.0 + unit if len(shape) < 2 else unit * sqrt(12.0 / max(1, prod(shape[1:]))))
    return found


def is_synthesized(meta: ConstantMeta) -> bool:
    """Say whether a constant has a synthetic value; integers, booleans and lifted constants keep their own."""
    return meta.kind is not ConstantKind.CONSTANT and meta.dtype.startswith(("float", "bfloat"))
