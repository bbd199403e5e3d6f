"""Input guards at run time: one generated function that says whether an artifact may be used for a call.

Between `flatten` and the compiled code, at every call (design.md, section 4: compiled code does not check its own
ranges, dtypes or strides). The function is generated, because walking records costs ten times as much; its source is
written from validated integers, names of dtypes and rebuilt expressions, never from a manifest's text.

Besides the recorded guards it always checks what any artifact relies on, since raw memory is read afterwards: the
number of inputs, no tensor subclass, dense memory that is its own value (not sparse, nested, conjugated, negated or
wrapped by a torch.func transform). A stride is compared where its dimension has more than one element: elsewhere it
is never used, and torch itself leaves it arbitrary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aot.errors import BindingFailed
from aot.runtime.argument_names import Speak
from aot.runtime.expression import FUNCTIONS
from aot.runtime.guard_source import Source, write_source
from aot.runtime.guard_text import explain_miss
from aot.runtime.process import without_modes
from aot.schema.artifact import TensorMeta
from aot.schema.guard import InputGuard

if TYPE_CHECKING:
    from torch import Tensor

# Checks that are kept to be shared.
MOST_CHECKS = 256

PlainKeys = tuple[tuple[str, frozenset[int]], ...]
# None: every guard holds. Else which input and which condition, with what was found.
Check = Callable[[Sequence["Tensor"]], "str | None"]


def find_faults(guards: Sequence[InputGuard], inputs: Sequence[TensorMeta]) -> tuple[str, ...]:
    """Return why an artifact with these guards must be rejected; empty when they can be checked.

    Unknown kinds, fields that do not fit the kind, expressions outside the language, sizes that no input has, and
    inputs whose dtype, device, rank, sizes or strides nothing constrains: what was not recorded is not accepted.
    """
    return write_source(guards, [meta.path for meta in inputs]).faults


def compile_check(
    guards: Sequence[InputGuard],
    inputs: Sequence[TensorMeta],
    *,
    device: str = "cpu",
    weights_require_grad: bool = False,
    speak: Speak = str,
) -> Check:
    """Return the check for flat tensor inputs; `device` is where the weights are ("cpu", "cuda:1").

    `weights_require_grad` makes every call that records gradients a miss. `speak` gives the name that an input has in
    what is said of it, from its place in the call. Raises BindingFailed, `details["reasons"]`
    holding what `find_faults` returns, or when the guards ask for a device other than that of the weights.
    """
    paths = tuple(speak(meta.path) for meta in inputs)
    return _compiled(tuple(guards), paths, device, weights_require_grad, _plain_on(guards, device))


@lru_cache(maxsize=MOST_CHECKS)
def _compiled(
    guards: tuple[InputGuard, ...], paths: tuple[str, ...], device: str, weights_require_grad: bool, plain: PlainKeys
) -> Check:
    """One for all instances of a region: they ask the same, and it is at hand in the caches when the next one asks."""
    source = write_source(guards, paths, weights_require_grad=weights_require_grad)
    names = {} if source.faults else _torch_names(source, device, dict(plain))
    faults = source.faults or tuple(value for value in names.values() if isinstance(value, str))
    if faults:
        raise BindingFailed(
            f"the artifact's input guards cannot be used: {faults[0]}",
            hint="build the artifact again, or load it with the version of aot that built it",
            details={"reasons": list(faults)},
        )

    scope = {**_plain_names(source, paths, device), **names}
    exec(compile(source.text, "<input guards>", "exec"), scope)
    check: Check = scope["check"]
    return check


def _plain_names(source: Source, paths: Sequence[str], device: str) -> dict[str, Any]:
    """Return all of Python that the generated source may use."""

    def say(index: int, tensors: "Sequence[Tensor]") -> str:
        return explain_miss(source.guards[index], tensors, paths, device=device)

    def miscounted(tensors: "Sequence[Tensor]") -> str:
        return f"{len(tensors)} tensor input(s), wanted {len(paths)}"

    def unreadable(error: Exception) -> str:
        return f"an input cannot be read: {type(error).__name__}: {str(error)[:200]}"

    return {
        "__builtins__": {},
        **FUNCTIONS,
        "len": len,
        "type": type,
        "say": say,
        "miscounted": miscounted,
        "unreadable": unreadable,
        "overlaps": _overlaps,
        "Miscount": ValueError,
        "Unreadable": (RuntimeError, ArithmeticError),
    }


def _torch_names(source: Source, device: str, plain: Mapping[str, frozenset[int]]) -> Mapping[str, Any]:
    """Return what the generated source refers to; a text in place of a value is a fault."""
    import torch
    from torch.autograd import forward_ad

    home = torch.device(device)
    names: dict[str, Any] = {
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "keys": torch._C._dispatch_keys,
        "is_tracing": torch._C._is_tracing,
        "is_grad_enabled": torch.is_grad_enabled,
        "is_autocast": torch._C._is_any_autocast_enabled,
        "forward_ad": forward_ad,
        "home_index": home.index or 0,
    }
    for name in source.dtypes:
        dtype = getattr(torch, name, None)
        names[f"dtype_{name}"] = dtype if isinstance(dtype, torch.dtype) else f"this torch has no dtype {name}"
    for family in source.devices:
        misplaced = f"the artifact takes inputs on {family}, the weights are on {device}"
        names[f"plain_{family}"] = plain.get(family, misplaced)
    return names


def _plain_on(guards: Sequence[InputGuard], device: str) -> PlainKeys:
    """Return what `_plain_keys` says now, by device type: under a transform of torch it says other things.

    A check that was made there must not be the one of a later load, so it is part of what they are shared by.
    """
    import torch

    families = {guard.value for guard in guards if guard.kind == "device"}
    places = {"cpu": "cpu", torch.device(device).type: device}
    return tuple((family, _plain_keys(place)) for family, place in places.items() if family in families)


def _plain_keys(device: str) -> frozenset[int]:
    """Return the dispatch key sets of ordinary tensors on `device`, made outside and inside inference mode.

    One comparison then covers device type, layout, nested, conjugate, negative and zero tensors, and every wrapper of
    torch.func. Views and parameters have the same keys as what they are made of.
    """
    import torch

    with without_modes(), torch.inference_mode(False):
        ordinary = torch.empty(0, device=device)
    with without_modes(), torch.inference_mode():
        inference = torch.empty(0, device=device)
    return frozenset(torch._C._dispatch_keys(tensor).raw_repr() for tensor in (ordinary, inference))


def _overlaps(tensor: "Tensor", position: int, tensors: "Sequence[Tensor]") -> bool:
    """True when `tensor` shares memory with another input. Interleaved views count as shared: a needless miss only."""
    start, end = _extent(tensor)
    for index, other in enumerate(tensors):
        if index == position:
            continue
        other_start, other_end = _extent(other)
        if start < other_end and other_start < end:
            return True
    return False


def _extent(tensor: "Tensor") -> tuple[int, int]:
    """Return the first byte and the one past the last of what `tensor` covers."""
    if tensor.numel() == 0:
        return 0, 0
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
