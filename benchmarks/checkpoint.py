"""Weights in one local safetensors file, read by the same code whatever then runs the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_checkpoint(module: Any, path: Path) -> None:
    """Write parameters and buffers; a tied tensor once, under the first of its names."""
    from safetensors.torch import save_file

    seen: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        seen.setdefault(id(tensor), name)
    state = module.state_dict()
    partial = path.with_suffix(".partial")
    save_file({name: state[name].contiguous() for name in seen.values()}, partial)
    partial.rename(path)  # a run that is cut off leaves no half of a checkpoint


def make_empty(make: Callable[[], Any]) -> Any:
    """Call `make` on the device `meta`, with no tensor initialised: on it, that would import the compiler."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Uninitialised(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if getattr(function, "__module__", "") == "torch.nn.init" or name in (
                "uniform_",
                "normal_",
                "trunc_normal_",
            ):
                return args[0] if args else kwargs["tensor"]
            return function(*args, **kwargs)

    with torch.device("meta"), Uninitialised():
        return make()


def read_checkpoint(module: Any, path: Path, *, device: str) -> Any:
    """Give a module that was made on the device `meta` its tensors, on `device`, and tie again what was tied.

    Raises RuntimeError where the file lacks one.
    """
    from safetensors.torch import load_file

    return _give(module, load_file(path, device=device))


def make_up(module: Any, *, device: str) -> Any:
    """Give it tensors of no meaning in the same way: what is compiled depends on their shapes alone."""
    import torch

    state = {
        name: (torch.randn if tensor.is_floating_point() else torch.zeros)(
            tensor.shape, dtype=tensor.dtype, device=device
        )
        for name, tensor in module.state_dict().items()
    }
    return _give(module, state)


def _give(module: Any, state: dict[str, Any]) -> Any:
    tied: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        tied.setdefault(id(tensor), []).append(name)
    for names in tied.values():
        present = next((state[name] for name in names if name in state), None)
        state |= {} if present is None else dict.fromkeys(names, present)
    module.load_state_dict(state, assign=True)
    for first, *others in (names for names in tied.values() if len(names) > 1):
        for other in others:
            owner, _, attribute = other.rpartition(".")
            setattr(module.get_submodule(owner), attribute, _tensor_at(module, first))
    return module


def _tensor_at(module: Any, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute)
