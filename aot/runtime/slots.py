"""The tensors that a shared object asks for, as far as its C interface tells."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from aot.runtime.interface import Interface
from aot.schema.artifact import ConstantKind

if TYPE_CHECKING:
    from torch import Tensor

# torch/csrc/inductor/aoti_runtime/constant_type.h
KINDS = {1: ConstantKind.PARAMETER, 2: ConstantKind.BUFFER, 3: ConstantKind.CONSTANT}

# c10/core/ScalarType.h, whose numbers never change; a dtype that is not listed is not compared here.
DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
}


class ConstantSlot(Struct, frozen=True):
    """One tensor that a shared object asks for; shape and strides are not to be had.

    `name` is the object's own name, `fqn` the one it had in the program. `storage_bytes` is the size of the storage
    it was built from, which a CPU build rounds up to 64. `folded`: computed by the object from other constants.
    """

    name: str
    fqn: str
    kind: ConstantKind | None
    dtype: str | None
    storage_bytes: int | None
    folded: bool


def read_slots(interface: Interface, handle: int) -> tuple[ConstantSlot, ...]:
    """Return what the container's object asks for, in its own order. Raises LoadFailed."""

    def read(index: int) -> ConstantSlot:
        dtype = interface.constant_number("Dtype", handle, index)
        kind = interface.constant_number("Type", handle, index)
        return ConstantSlot(
            name=interface.constant_text("Name", handle, index),
            fqn=interface.constant_text("OriginalFQN", handle, index),
            kind=None if kind is None else KINDS.get(kind),
            dtype=None if dtype is None else DTYPES.get(dtype),
            storage_bytes=interface.constant_number("DataSize", handle, index),
            folded=bool(interface.constant_number("FromFolded", handle, index)),
        )

    return tuple(read(index) for index in range(interface.count("Constants", handle)))


def misfits(slots: Sequence[ConstantSlot], tensors: Mapping[str, "Tensor"]) -> tuple[str, ...]:
    """Return every way in which `tensors`, by `fqn`, are not the ones that `slots` ask for: names and dtypes."""
    wanted = {slot.fqn: slot for slot in slots}
    reasons = [f"{name}: missing" for name in wanted if name not in tensors]
    reasons += [f"{name}: the artifact does not ask for it" for name in tensors if name not in wanted]
    for name, slot in wanted.items():
        found = str(tensors[name].dtype).removeprefix("torch.") if name in tensors else None
        if found is not None and slot.dtype is not None and found != slot.dtype:
            reasons.append(f"{name}: wanted dtype {slot.dtype}, found {found}")
    return tuple(reasons)
