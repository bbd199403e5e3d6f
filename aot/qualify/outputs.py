"""What one call leaves behind, as named tensors: its result, the inputs it wrote into, the buffers it changed.

Eager, compiled and reference calls are written down alike, so that a difference in any of the three is found by the
same comparison. Runs in the numerics child.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.qualify.inputs import copied, replace_tensors
from aot.qualify.subject import Call

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

# More elements than this are sampled: a language model's logits would fill the disk.
MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Trace:
    """`form` spells the structure of the result; `leaves` are all tensors, sampled and on the CPU."""

    form: str
    leaves: Mapping[str, "Tensor"]


def run_traced(
    function: Callable[..., Any], call: Call, state: Mapping[str, "Tensor"], *, most_elements: int = MOST_ELEMENTS
) -> Trace:
    """Call `function` on copies of the inputs, without gradients. `state` are tensors that it may write into."""
    import torch

    inputs = [copied(tensor) for tensor in call.tensors]
    args, kwargs = replace_tensors((call.args, call.kwargs), call.tensors, inputs)
    before = {name: tensor.detach().clone() for name, tensor in state.items()}
    with torch.no_grad():
        result = function(*args, **kwargs)
    form, found = name_leaves(result)
    for index, (tensor, original) in enumerate(zip(inputs, call.tensors, strict=True)):
        if not _is_equal(tensor, original):
            found[f"input {index}"] = tensor
    found |= {f"buffer {name}": tensor for name, tensor in state.items() if not _is_equal(tensor, before[name])}
    return Trace(form, {name: sampled(tensor, most_elements) for name, tensor in found.items()})


def name_leaves(result: Any) -> tuple[str, dict[str, "Tensor"]]:
    """Return a result's form and its leaves as tensors: numbers become 0-dim ones, other leaves part of the form."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten(result)
    kinds: list[str] = []
    found: dict[str, Tensor] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            found[f"output {index}"] = leaf
        elif isinstance(leaf, bool | int | float):
            found[f"output {index}"] = torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
        kinds.append("Tensor" if isinstance(leaf, torch.Tensor) else _spell(leaf))
    return f"{spec} of {', '.join(kinds)}", found


def widen(call: Call, dtype: "Any") -> Call:
    """Return the call with every floating-point input in `dtype`, and complex ones as wide."""
    import torch

    complex_type = torch.complex128 if dtype is torch.float64 else torch.complex64

    def cast(tensor: "Tensor") -> "Tensor":
        if tensor.is_complex():
            return tensor.to(complex_type)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    wide = tuple(cast(tensor) for tensor in call.tensors)
    args, kwargs = replace_tensors((call.args, call.kwargs), call.tensors, wide)
    return Call(args, kwargs, wide)


def sampled(tensor: "Tensor", most_elements: int = MOST_ELEMENTS) -> "Tensor":
    """Return a copy on the CPU; of a large tensor every k-th element, k without a factor in common with its size.

    So every column, row and channel is among them, and an error in one of them is not stepped over.
    """
    flat = tensor.detach()
    if tensor.numel() > most_elements:
        step = tensor.numel() // most_elements + 1
        while gcd(step, tensor.numel()) != 1:
            step += 1
        flat = flat.reshape(-1)[::step]
    return flat.resolve_conj().resolve_neg().cpu().contiguous().clone()


def save_traces(path: Path, **traces: Trace) -> None:
    """Write `<role>.<leaf>` of every trace as safetensors."""
    from safetensors.torch import save_file

    named = {f"{role}.{name}": tensor for role, trace in traces.items() for name, tensor in trace.leaves.items()}
    # A reference may be eager's own tensor, and the format has no two names for one.
    seen: set[int] = set()
    for name, tensor in named.items():
        if id(tensor) in seen:
            named[name] = tensor.clone()
        seen.add(id(tensor))
    save_file(named, str(path))


def state_of(module: "Module", also: Sequence[str] = ()) -> dict[str, "Tensor"]:
    """Return the tensors that a call may write into: every buffer, and the parameters named in `also`."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return dict(module.named_buffers()) | {name: parameters[name] for name in also if name in parameters}


def _is_equal(one: "Tensor", other: "Tensor") -> bool:
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _spell(leaf: Any) -> str:
    return type(leaf).__name__ if isinstance(leaf, bool | int | float) else f"{type(leaf).__name__} {str(leaf)[:80]}"
