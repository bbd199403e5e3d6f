"""Which tensor of the live module each constant of an artifact is.

Between `Container.open` and `Container.bind` in the pod's `load`. The object itself accepts wrong shapes and transposed
storage and computes garbage with them, so everything is compared here with what was recorded at the build; a misfit is
expected (another checkpoint, a wrapped layer) and comes back as reasons, all of them at once. What changes later is
noticed by `aot.runtime.watch`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.runtime.slots import ConstantSlot
from aot.schema.artifact import ConstantKind, ConstantMeta

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Reasons = tuple[str, ...]
_LIVE_KINDS = (ConstantKind.PARAMETER, ConstantKind.BUFFER)


class BindingPlan(Struct, frozen=True):
    """The tensor for every constant of an artifact, to give to `Container.bind`."""

    tensors: "Mapping[str, Tensor]"


def plan_binding(
    slots: Sequence[ConstantSlot],
    module: "Module",
    *,
    constants: Sequence[ConstantMeta],
    lifted: Mapping[str, "Tensor"],
    device: str,
) -> BindingPlan | Reasons:
    """Find the tensor for every slot in `module` or among `lifted`, or say everything that does not fit.

    `constants` is what the manifest records of them, `device` where the container runs ("cpu", "cuda:0").
    Names are relative to `module`: for an instance of a region, the instance.
    """
    metas = {meta.name: meta for meta in constants}
    asked = {slot.fqn: slot for slot in slots if not slot.folded}
    reasons = [*_unlisted(metas, asked)]
    tensors: dict[str, Tensor] = {}
    for name, meta in metas.items():
        if name not in asked:
            continue
        lies_in_artifact = meta.kind is ConstantKind.CONSTANT
        found: Any = lifted.get(name) if lies_in_artifact else _find_tensor(module, name, meta.kind)
        if found is None:
            reasons.append(f"{name}: no such {meta.kind}")
            continue
        reasons += [f"{name}: {misfit}" for misfit in _misfits(found, meta, asked[name], device)]
        tensors[name] = found
    reasons += _untied(module, metas, tensors)
    if not reasons:
        reasons += _overlaps(metas, tensors)
    return tuple(reasons) if reasons else BindingPlan(tensors)


def _unlisted(metas: Mapping[str, ConstantMeta], asked: Mapping[str, ConstantSlot]) -> Iterator[str]:
    yield from (
        f"{name}: the artifact asks for it, its manifest does not list it" for name in asked if name not in metas
    )
    yield from (
        f"{name}: the manifest lists it, the artifact does not ask for it" for name in metas if name not in asked
    )


def _find_tensor(module: "Module", name: str, kind: ConstantKind) -> "Tensor | None":
    """Return the parameter or buffer that the module's own tables hold under that name."""
    path, _, key = name.rpartition(".")
    for part in path.split(".") if path else ():
        module = module._modules.get(part)
        if module is None:
            return None
    table: dict[str, Any] = module._parameters if kind is ConstantKind.PARAMETER else module._buffers
    return table.get(key)


def _misfits(tensor: "Tensor", meta: ConstantMeta, slot: ConstantSlot, device: str) -> Iterator[str]:
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        yield f"wanted a plain tensor, found a {type(tensor).__name__}"
        return
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        yield "wanted plain strided storage, found a sparse, quantized, conjugated or negated tensor"
        return
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != meta.dtype:
        yield f"wanted dtype {meta.dtype}, found {dtype}"
    if slot.dtype is not None and slot.dtype != meta.dtype:
        yield f"the artifact wants dtype {slot.dtype}, its manifest says {meta.dtype}"
    if tuple(tensor.shape) != meta.shape:
        yield f"wanted shape {meta.shape}, found {tuple(tensor.shape)}"
    elif _significant(tensor.stride(), meta.shape) != _significant(meta.stride, meta.shape):
        yield f"wanted strides {meta.stride}, found {tensor.stride()}"
    wanted = torch.device(device if device.startswith(meta.device) else meta.device)
    if tensor.device != wanted:
        yield f"wanted device {wanted}, found {tensor.device}"
    elif _end_of(tensor) > tensor.untyped_storage().nbytes():
        yield "its memory has been released"


def _significant(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that say something about where elements lie: those of dimensions with several."""
    if 0 in shape:
        return ()
    return tuple(stride for stride, size in zip(strides, shape, strict=True) if size > 1)


def _end_of(tensor: "Tensor") -> int:
    """Return the offset in its storage, in bytes, where the tensor ends."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size()


def _untied(module: "Module", metas: Mapping[str, ConstantMeta], tensors: Mapping[str, "Tensor"]) -> Iterator[str]:
    """Yield the names that were one tensor at the build and no longer are."""
    for name, tensor in tensors.items():
        for alias in metas[name].aliases:
            # A parameter may be tied to a buffer as well: `register_buffer("same", self.weight.detach())`.
            found = next((one for kind in _LIVE_KINDS if (one := _find_tensor(module, alias, kind)) is not None), None)
            if found is None:
                yield f"{alias}: no such {metas.get(alias, metas[name]).kind}, it was tied to {name}"
            elif not _is_same_memory(found, tensor):
                yield f"{alias}: no longer tied to {name}, which the artifact uses in its place"


def _is_same_memory(one: "Tensor", other: "Tensor") -> bool:
    return one is other or (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


def _overlaps(metas: Mapping[str, ConstantMeta], tensors: Mapping[str, "Tensor"]) -> Iterator[str]:
    """Yield the tensors that the artifact writes to and that now share memory with another one.

    Compiled code reads and writes in an order that is right for the memory as it was at the build.
    """
    users: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            users.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    for name, meta in metas.items():
        if meta.mutated and tensors[name].numel():
            others = [user for user in users[tensors[name].untyped_storage().data_ptr()] if user != name]
            for other in (user for user in others if _ranges_meet(tensors[name], tensors[user])):
                yield f"{name}: the artifact writes to it, and it shares memory with {other}"


def _ranges_meet(one: "Tensor", other: "Tensor") -> bool:
    def span(tensor: "Tensor") -> tuple[int, int]:
        return tensor.storage_offset() * tensor.element_size(), _end_of(tensor)

    (start, end), (other_start, other_end) = span(one), span(other)
    return start < other_end and other_start < end
