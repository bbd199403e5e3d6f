"""Which tensor of the live module each constant of an artifact is, and whether it still is.

Between `Container.open` and `Container.bind` in the pod's `load`. The object itself accepts wrong shapes and transposed
storage and computes garbage with them, so everything is compared here with what was recorded at the build; a misfit is
expected (another checkpoint, a wrapped layer) and comes back as reasons, all of them at once.

How a later change is noticed. Nothing that torch offers tells of all of them: there are hooks for registering a
parameter, none for `_apply`, and `p.data = x` (LoRA merges, weight reloads) passes through no Python at all. So
`is_current` looks: the entries of the modules' own tables must still be the objects that were bound, submodules on the
way included, and every tensor must still lie at the same address. The objects are gathered and compared in C, at about
70 ns a tensor. That sees a replaced or deleted Parameter, buffer or submodule, `load_state_dict(assign=True)`, `.to()`,
`.half()`, any other `_apply`, `p.data = x`, `swap_tensors`, `functional_call`, and a tie undone. Not seen, because
address and object stay: a shape, stride or dtype changed in place over the same memory (`p.t_()`,
`p.data = p.data.view(...)`), and an exchanged `_parameters` dict. Writes into a tensor need no notice.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.runtime.slots import ConstantSlot
from aot.schema.artifact import ConstantKind, ConstantMeta

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Reasons = tuple[str, ...]


class _Place(Struct, frozen=True):
    """Where a module keeps a tensor or a submodule: `table[key]`, and what was found there."""

    table: dict[str, Any]
    key: str
    found: Any


class BindingPlan:
    """The tensor for every constant of an artifact, to give to `Container.bind`."""

    def __init__(self, tensors: Mapping[str, "Tensor"], places: Sequence[_Place], modules: Sequence[_Place]) -> None:
        from torch import Tensor

        self.tensors = tensors
        watched = (*places, *modules)
        self._tables = [place.table for place in watched]
        self._keys = [place.key for place in watched]
        self._objects = [place.found for place in watched]
        self._count = len(places)
        self._address_of = Tensor.data_ptr
        self._addresses = [place.found.data_ptr() for place in places]

    def is_current(self) -> bool:
        """Say whether the module still holds these very tensors; the module's docstring says what is not noticed."""
        try:
            found = list(map(getitem, self._tables, self._keys))
            # Addresses first: comparing lists tests identity first as well, but goes on to `==` where that fails,
            # which for two tensors in different memory would be a computation.
            if list(map(self._address_of, found[: self._count])) != self._addresses:
                return False
            return found == self._objects
        except (KeyError, TypeError, RuntimeError):
            return False


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
    reasons = [
        f"{name}: the artifact asks for it, its manifest does not list it" for name in asked if name not in metas
    ]
    reasons += [
        f"{name}: the manifest lists it, the artifact does not ask for it" for name in metas if name not in asked
    ]
    tensors: dict[str, Tensor] = {}
    places: list[_Place] = []
    for name, meta in metas.items():
        if name not in asked:
            continue
        if meta.kind is ConstantKind.CONSTANT:
            found: Any = lifted.get(name)
        else:
            place = _find_place(module, name, meta.kind)
            found = None if place is None else place.found
            if place is not None:
                places.append(place)
        if found is None:
            reasons.append(f"{name}: no such {meta.kind}")
            continue
        reasons += [f"{name}: {misfit}" for misfit in _misfits(found, meta, asked[name], device)]
        tensors[name] = found
    reasons += _untied(module, metas, tensors, places)
    if reasons:
        return tuple(reasons)
    reasons += _overlaps(metas, tensors)
    return tuple(reasons) if reasons else BindingPlan(tensors, places, _module_places(module, places, metas))


def _find_place(module: "Module", name: str, kind: ConstantKind) -> _Place | None:
    """Return the table entry of a parameter or buffer; None when there is none, or it holds None."""
    path, _, key = name.rpartition(".")
    for part in path.split(".") if path else ():
        module = module._modules.get(part)
        if module is None:
            return None
    table = module._parameters if kind is ConstantKind.PARAMETER else module._buffers
    found = table.get(key)
    return None if found is None else _Place(table, key, found)


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


def _untied(
    module: "Module", metas: Mapping[str, ConstantMeta], tensors: Mapping[str, "Tensor"], places: list[_Place]
) -> Iterator[str]:
    """Yield the names that were one tensor at the build and no longer are; add those that are to `places`."""
    for name, tensor in tensors.items():
        for alias in metas[name].aliases:
            place = _find_place(module, alias, metas[name].kind)
            if place is None:
                yield f"{alias}: no such {metas[name].kind}, it was tied to {name}"
            elif not _is_same_memory(place.found, tensor):
                yield f"{alias}: no longer tied to {name}, which the artifact uses in its place"
            else:
                places.append(place)


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


def _module_places(module: "Module", places: Sequence[_Place], metas: Mapping[str, ConstantMeta]) -> tuple[_Place, ...]:
    """Return the place of every submodule on the way to a bound tensor, each once."""
    names = [
        name for meta in metas.values() if meta.kind is not ConstantKind.CONSTANT for name in (meta.name, *meta.aliases)
    ]
    found: dict[tuple[int, str], _Place] = {}
    for name in names:
        parent = module
        for part in name.split(".")[:-1]:
            child = parent._modules[part]
            found[id(parent), part] = _Place(parent._modules, part, child)
            parent = child
    return tuple(found.values())
