"""Weights for a module: given ones from safetensors files, or synthetic ones from a seed.

Nothing of them reaches an unfrozen artifact; they serve a frozen build, and the proof of every build.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.constants import tied_names
from aot.errors import InvalidSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def load_weights(module: "Module", files: Iterable[Path]) -> None:
    """Copy the tensors of `files` into `module`.

    Raises InvalidSpec that names every tensor that is missing, is too many, or has another shape. A tied tensor may
    stand under any of its names; buffers that a state dict leaves out keep their values.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    given: dict[str, Tensor] = {}
    for path in files:
        try:
            given |= load_file(str(path))
        except SafetensorError as error:
            raise InvalidSpec(
                f"{path.name} is not a safetensors file: {error}", hint="save weights with safetensors.torch.save_file"
            ) from error
    state = module.state_dict(keep_vars=True)
    tied = tied_names(module)
    missing = [name for name in state if name not in given and not any(alias in given for alias in tied.get(name, ()))]
    unknown = [name for name in given if name not in state]
    misfits = [
        f"{name}: {tuple(given[name].shape)} for {tuple(state[name].shape)}"
        for name in given
        if name in state and given[name].shape != state[name].shape
    ]
    if missing or unknown or misfits:
        raise InvalidSpec(
            f"the weights do not fit the module: {len(missing)} missing, {len(unknown)} unknown, "
            f"{len(misfits)} of another shape",
            hint="give the state dict of the very module that the factory returns",
            details={"missing": missing[:50], "unknown": unknown[:50], "misfits": misfits[:50]},
        )
    with torch.no_grad():
        for name, tensor in given.items():
            state[name].copy_(tensor)


def seed_weights(module: "Module", seed: int) -> None:
    """Overwrite every floating-point parameter and buffer with its synthetic tensor; integers stay as they are."""
    import torch

    from aot.runtime.synthetic import synthetic_tensor

    with torch.no_grad():
        # Both iterators give a tied tensor once, under its first name.
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point():
                dtype = str(tensor.dtype).removeprefix("torch.")
                tensor.copy_(synthetic_tensor(name, tensor.shape, dtype, seed=seed))
