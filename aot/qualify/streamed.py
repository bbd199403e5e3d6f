"""A module that runs in a wider type without its weights ever being wide all at once.

Each part has wide parameters for the time of its call only: a model whose copy in float64 is larger than what is free
still gets a reference that is better than itself. Buffers are few and may be written into, so they are wide for good.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

Slot = tuple["Module", str]  # where a parameter stands


def stream(module: "Module", dtype: Any, *, room_bytes: int) -> "Module | None":
    """Return a copy of `module` that computes in `dtype` and shares its parameters; None where the room is too small.

    Parts of no more than a quarter of the room are wide as wholes, since a part may reach for the parameters of what
    lies within it. A part that is called by another way than `module(...)` stays narrow: what computes with a narrow
    parameter raises RuntimeError, so that no result is taken for a wide one.
    """
    width = dtype.itemsize
    buffers = sum(tensor.numel() for tensor in module.buffers())
    left = room_bytes - 2 * width * buffers  # a call keeps them as they were before
    parts = tuple(_parts(module, most_elements=left // (4 * width)))
    if left <= 0 or any(width * elements > left // 2 for _, _, elements in parts):
        return None
    shared: dict[int, Any] = {id(tensor): tensor for tensor in module.parameters()}
    copied = copy.deepcopy(module, shared)
    _widen_state(copied, dtype)
    guard = _guard({id(tensor) for tensor in module.parameters() if tensor.is_floating_point()})
    for part, slots, _ in _parts(copied, most_elements=left // (4 * width)):
        _hook(part, lambda slots=slots: _wide(slots, dtype, guard))
    _hook(copied, lambda: guard)
    return copied


def widen_attributes(module: "Module", dtype: Any) -> None:
    """Cast the plain tensors among the attributes of every part, which `Module.to` leaves alone."""
    import torch

    for part in module.modules():
        for name, value in part.__dict__.items():
            if type(value) is torch.Tensor and value.is_floating_point():
                part.__dict__[name] = value.to(dtype)


def _parts(module: "Module", *, most_elements: int) -> Iterator[tuple["Module", tuple[Slot, ...], int]]:
    """Yield the largest parts of so many elements, and of larger ones what is theirs alone.

    With each, how many elements are wide while it runs: its own, and what is theirs of the parts that it lies in.
    """
    seen: set[int] = set()
    waiting = [(module, 0)]
    while waiting:
        part, around = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        slots = tuple(_slots(part, recurse=True))
        if (elements := _elements(slots)) > most_elements:
            slots = tuple(_slots(part, recurse=False))
            elements = _elements(slots)
            waiting += [(child, around + elements) for child in part.children()]
        if slots:
            yield part, slots, around + elements


def _slots(module: "Module", *, recurse: bool) -> Iterator[Slot]:
    for part in module.modules() if recurse else (module,):
        for name, tensor in part._parameters.items():
            if tensor is not None and tensor.is_floating_point():
                yield part, name


def _elements(slots: tuple[Slot, ...]) -> int:
    return sum({id(tensor): tensor.numel() for tensor in map(_at, slots)}.values())


def _at(slot: Slot) -> "Parameter":
    part, name = slot
    found = part._parameters[name]
    assert found is not None
    return found


def _widen_state(module: "Module", dtype: Any) -> None:
    """Widen every buffer, one that stands at two places once, and plain tensors."""
    wide: dict[int, Tensor] = {}
    for part in module.modules():
        for name, tensor in part._buffers.items():
            if tensor is not None and tensor.is_floating_point():
                part._buffers[name] = wide.setdefault(id(tensor), tensor.to(dtype))
    widen_attributes(module, dtype)


def _hook(part: "Module", make_context: "Callable[[], Any]") -> None:
    """Call the part within a context; of calls within one another, the outermost."""
    opened: list[Any] = []

    def enter(*_: Any) -> None:
        context = nullcontext() if opened else make_context()
        context.__enter__()
        opened.append(context)

    def leave(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    # Before hooks of its own, which may compute its weights (torch.nn.utils.weight_norm).
    part.register_forward_pre_hook(enter, prepend=True)
    part.register_forward_hook(leave, always_call=True)


def _guard(narrow: set[int]) -> Any:
    """Return a mode of torch in which nothing may be computed with the tensors of these identities."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Guard(TorchDispatchMode):
        """`is_opening` is true while they are being cast."""

        is_opening = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self.is_opening and any(id(leaf) in narrow for leaf in tree_leaves((args, kwargs))):
                raise RuntimeError(f"{func} would compute with a parameter that is not wide")
            return func(*args, **(kwargs or {}))

    return Guard()


@contextmanager
def _wide(slots: tuple[Slot, ...], dtype: Any, guard: Any) -> Iterator[None]:
    from torch.nn import Parameter

    narrow = [(slot, _at(slot)) for slot in slots]
    made: dict[int, Parameter] = {}
    guard.is_opening = True
    for (part, name), tensor in narrow:
        if id(tensor) not in made:
            made[id(tensor)] = Parameter(tensor.detach().to(dtype), requires_grad=False)
        part._parameters[name] = made[id(tensor)]
    guard.is_opening = False
    try:
        yield
    finally:
        for (part, name), tensor in narrow:
            part._parameters[name] = tensor
