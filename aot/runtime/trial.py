"""The first call of a module that stands in for an exported program: run both ways before the compiled way is used.

What is known of such a program (aot.runtime.program) leaves out its code and its plain attributes: a layer with
another epsilon would be the same module. So the first call that compiled code would answer runs eagerly too, on copies
of its arguments; where the results differ, the module runs eagerly from then on, and the reason says so. It costs one
eager call, once. Of a program that draws random numbers nothing can be compared, and nothing is.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from aot.runtime.canary import difference
from aot.runtime.unit import Miss, Unit

if TYPE_CHECKING:
    from torch import Tensor

UNLIKE = "the live module is not the program that was compiled: its first call gave other results"


def try_first_call(unit: Unit) -> None:
    """Put a trial before the next call of `unit`; whatever comes of it, later calls go to `unit` directly."""
    unit.call = _Trial(unit)  # type: ignore[method-assign]


class _Trial:
    """Stands for `unit.call` until one call has been answered by compiled code, or found unlike."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._call = unit.call
        self._lock = Lock()
        self._over = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = self._unit._bound
        if not bound.is_current():
            bound = self._unit.rebind(stale=bound)
        if not bound.forms:
            # Also in a child that was forked meanwhile: a thread of the parent may hold the lock for ever.
            return self._call(args, kwargs)
        with self._lock:
            if not self._over:
                return self._try(args, kwargs)
        return self._call(args, kwargs)  # decided while this thread waited

    def _try(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        from torch.utils._pytree import tree_leaves

        state = _State(self._unit)
        copied = _copies((args, dict(kwargs)))
        found = self._call(*copied)
        if found.__class__ is Miss:
            return found  # answered eagerly: the next call is the first
        told = _copies(tree_leaves(found))
        state.restore()
        wrote, reason = self._compare(told, _copies((args, dict(kwargs))))
        state.restore()
        if reason:
            self._unit.abandon(f"{UNLIKE}: {reason}")
        self._over = True
        del self._unit.call  # type: ignore[attr-defined]
        # Where a call writes, or returns a view of an argument, the result is worth nothing without that.
        alone = not (reason or wrote or state.is_written or _share_memory(found, copied))
        return found if alone else self._call(args, kwargs)

    def _compare(self, told: list[Any], arguments: Any) -> tuple[bool, str]:
        """Run eagerly; say whether that wrote into the arguments, and how its results differ from what was `told`."""
        import torch
        from torch.utils._pytree import tree_leaves

        before = [_version(one) for one in _tensors(arguments)]
        try:
            with torch.no_grad():
                args, kwargs = arguments
                wanted = tree_leaves(self._unit.module(*args, **kwargs))
        except Exception as error:
            return True, f"eagerly it raises {type(error).__name__}: {str(error)[:200]}"
        wrote = None in before or before != [_version(one) for one in _tensors(arguments)]
        return wrote, _difference(told, wanted)


class _State:
    """The buffers of a module as they were, where its artifacts write into them."""

    def __init__(self, unit: Unit) -> None:
        self.is_written = any(variant.writes for form in unit._bound.forms for variant in form.variants)
        self._buffers = [(one, one.detach().clone()) for one in unit.module.buffers()] if self.is_written else []

    def restore(self) -> None:
        import torch

        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    from torch import Tensor

    if len(found) != len(wanted):
        return f"{len(found)} outputs, eagerly {len(wanted)}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            if one != other:
                return f"output {number} is {str(one)[:80]}, eagerly {str(other)[:80]}"
        elif reason := _difference_of_tensors(one.detach().cpu(), other.detach().cpu()):
            return f"output {number}: {reason}"
    return ""


def _difference_of_tensors(found: "Tensor", wanted: "Tensor") -> str | None:
    numbers = wanted.is_floating_point() or wanted.is_complex()
    if numbers and (found.shape, found.dtype) == (wanted.shape, wanted.dtype):
        # Of a masked row eager gives NaN as well; what is no number in both has no error.
        same = (found.isnan() & wanted.isnan()) | (found.isinf() & (found == wanted))
        found, wanted = found.masked_fill(same, 0), wanted.masked_fill(same, 0)
        if not bool(found.isfinite().all()) or not bool(wanted.isfinite().all()):
            return "NaN or infinity at other places than eagerly"
    return difference(found, wanted)


def _share_memory(found: Any, arguments: Any) -> bool:
    places = {one.untyped_storage().data_ptr() for one in _tensors(arguments)}
    return any(one.untyped_storage().data_ptr() in places for one in _tensors(found))


def _version(tensor: "Tensor") -> int | None:
    """Counts writes; None for an inference tensor, of which torch does not."""
    return None if tensor.is_inference() else tensor._version


def _copies(tree: Any) -> Any:
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    return tree_map_only(Tensor, _copy, tree)


def _copy(tensor: "Tensor") -> "Tensor":
    """The same values in the same layout, which guards look at."""
    import torch

    plain = tensor.detach()
    if tensor.layout is not torch.strided:
        copied = plain.clone()
    elif 0 in tensor.stride():
        # Expanded: elements share memory, and cannot be written one by one.
        sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        copied = _copy(plain.as_strided(sizes, [stride or 1 for stride in tensor.stride()])).expand(tensor.shape)
    else:
        copied = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device).copy_(plain)
    return copied.requires_grad_(tensor.requires_grad)


def _tensors(tree: Any) -> "list[Tensor]":
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
