"""Weights for a module: given ones from safetensors files, or synthetic ones from a seed.

Nothing of them reaches an unfrozen artifact; they serve a frozen build, and the proof of every build.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.constants import tied_names
from aot.errors import InvalidSpec

if TYPE_CHECKING:
    from torch.nn import Module


def load_weights(module: "Module", files: Iterable[Path]) -> None:
    """Copy the tensors of `files` into `module`, one at a time: of a file no more is mapped than that it is open.

    Raises InvalidSpec that names every tensor that is missing, is too many, or has another shape. A tied tensor may
    stand under any of its names; buffers that a state dict leaves out keep their values.
    """
    import torch

    paths = tuple(files)
    given: dict[str, tuple[int, ...]] = {}
    for path in paths:
        with _opened(path) as file:
            given |= {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    state = module.state_dict(keep_vars=True)
    tied = tied_names(module)
    missing = [name for name in state if name not in given and not any(alias in given for alias in tied.get(name, ()))]
    unknown = [name for name in given if name not in state]
    misfits = [
        f"{name}: {shape} for {tuple(state[name].shape)}"
        for name, shape in given.items()
        if name in state and shape != tuple(state[name].shape)
    ]
    if missing or unknown or misfits:
        raise InvalidSpec(
            f"the weights do not fit the module: {len(missing)} missing, {len(unknown)} unknown, "
            f"{len(misfits)} of another shape",
            hint="give the state dict of the very module that the factory returns",
            details={"missing": missing[:50], "unknown": unknown[:50], "misfits": misfits[:50]},
        )
    with torch.no_grad():
        for path in paths:
            with _opened(path) as file:
                for name in sorted(file.keys()):
                    state[name].copy_(file.get_tensor(name))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise InvalidSpec(
            f"{path.name} is not a safetensors file: {error}", hint="save weights with safetensors.torch.save_file"
        ) from error


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
