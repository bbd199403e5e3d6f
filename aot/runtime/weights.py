"""Whether a live module holds the checkpoint that a frozen artifact has inside.

A frozen artifact asks for no tensor: whatever the module holds, it computes with the weights of its build. So the
module's own are compared with those, by digest, when it is loaded and whenever they may have changed.
"""

import hashlib
from typing import TYPE_CHECKING

from aot.schema.digest import Digest

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

WEIGHTS_FACT = "weights"


def digest_weights(module: "Module") -> Digest:
    """Return the digest over every parameter and buffer by name, dtype, shape and bytes. About 2 GB/s."""
    running = hashlib.sha256()
    for name, tensor in _tensors(module):
        running.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        running.update(_bytes_of(tensor))
    return Digest.from_hex(running.hexdigest())


def _tensors(module: "Module") -> "list[tuple[str, Tensor]]":
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return sorted(named, key=lambda pair: pair[0])


def _bytes_of(tensor: "Tensor") -> memoryview:
    import torch

    plain = tensor.detach().cpu().contiguous()
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else memoryview(b"")
