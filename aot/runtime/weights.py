"""Whether a live module holds the checkpoint that a frozen artifact has inside.

A frozen artifact asks for no tensor: whatever the module holds, it computes with the weights of its build. So the
module's own are compared with those, by digest, when it is loaded and whenever they may have changed.
"""

import hashlib
from collections.abc import Mapping
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


class FrozenPlan:
    """Watches the module's tensors in place of a binding: same objects, same memory, no write since.

    Not noticed: a write through `tensor.data` or from another process, which torch does not count.
    """

    tensors: "Mapping[str, Tensor]" = {}  # nothing is bound

    def __init__(self, module: "Module") -> None:
        self._module = module
        self._seen = self._look()

    def is_current(self) -> bool:
        """Say whether the module still holds the tensors that were compared."""
        return self._look() == self._seen

    def _look(self) -> list[tuple[int, int, int]]:
        return [(id(tensor), tensor.data_ptr(), tensor._version) for _, tensor in _tensors(self._module)]


def _tensors(module: "Module") -> "list[tuple[str, Tensor]]":
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return sorted(named, key=lambda pair: pair[0])


def _bytes_of(tensor: "Tensor") -> memoryview:
    import torch

    plain = tensor.detach().cpu().contiguous()
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else memoryview(b"")
