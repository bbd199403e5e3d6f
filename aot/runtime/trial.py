"""The first call of a module that stands in for an exported program: run both ways before the compiled way is used.

What is known of such a program (aot.runtime.program) leaves out its code and its plain attributes: a layer with
another epsilon would be the same module. So the first call that compiled code would answer runs eagerly too, on copies
of its arguments; where the results, or what the two wrote into buffers, differ, the module runs eagerly from then on,
and the reason says so. Either way the buffers get back what they held, and the call is made once. It costs one eager
call and a copy of the buffers, once. Of a program that draws random numbers nothing can be compared, and nothing is.

Parameters are too large to copy: an eager call that writes into one is told by its version, and stays written. Plain
attributes, tensors or not, are not looked at.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from aot.runtime.canary import difference
from aot.runtime.unit import Miss, Unit

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

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

        state = _State(self._unit.module)
        writes = any(variant.writes for form in self._unit._bound.forms for variant in form.variants)
        copied = _copies((args, dict(kwargs)))
        found = self._call(*copied)
        if found.__class__ is Miss:
            return found  # answered eagerly: the next call is the first
        told, written = _copies(tree_leaves(found)), state.written()
        state.restore()
        wrote, reason = self._compare(told, _copies((args, dict(kwargs))))
        reason = reason or state.difference(written)
        state.restore()
        if reason:
            self._unit.abandon(f"{UNLIKE}: {reason}")
        self._over = True
        del self._unit.call  # type: ignore[attr-defined]
        # Where a call writes, or returns a view of an argument, the result is worth nothing without that.
        alone = not (reason or wrote or writes or written or _share_memory(found, copied))
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
    """What the buffers of a module hold, and which tensors its tables do; the versions of its parameters."""

    def __init__(self, module: "Module") -> None:
        tables = [table for one in module.modules() for table in (one._buffers, one._parameters)]
        self._module = module
        self._tables = [(table, dict(table)) for table in tables]
        self._buffers = {name: (one, _copy(one)) for name, one in _buffers_of(module).items()}
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._versions = {name: _version(one) for name, one in self._parameters.items()}

    def written(self) -> "dict[str, Tensor | None]":
        """Copies of the buffers that hold other values than at first, by name; None for one that is gone."""
        live = _buffers_of(self._module)
        changed = {name: _copy(one) for name, one in live.items() if not self._is_as_before(name, one)}
        return changed | {name: None for name in self._buffers.keys() - live.keys()}

    def difference(self, compiled: "Mapping[str, Tensor | None]") -> str:
        """Say how the module, after an eager call, differs from what the `compiled` one had written into it."""
        eager, live = self.written(), dict(self._module.named_parameters(remove_duplicate=False))
        for name in sorted(eager.keys() | compiled.keys()):
            if name not in compiled:
                return f"buffer {name} is written eagerly, and not by compiled code"
            if name not in eager:
                return f"buffer {name} is written by compiled code, and not eagerly"
            if reason := self._difference_of(name, compiled[name], eager[name]):
                return f"buffer {name}: {reason}"
        for name, one in self._parameters.items():
            if live.get(name) is not one or _version(one) != self._versions[name]:
                return f"parameter {name} is written eagerly"
        return ""

    def restore(self) -> None:
        """Only what changed: a write is noticed elsewhere, by its version."""
        import torch

        for table, before in self._tables:
            if table.keys() != before.keys() or any(table[key] is not one for key, one in before.items()):
                table.clear()
                table.update(before)
        with torch.inference_mode():  # where inference tensors can be written as well
            for name, (buffer, before) in self._buffers.items():
                if not self._is_as_before(name, buffer):
                    _single(buffer).copy_(_single(before))

    def _is_as_before(self, name: str, buffer: "Tensor") -> bool:
        known = self._buffers.get(name)
        return known is not None and _is_equal(buffer, known[1])

    def _difference_of(self, name: str, found: "Tensor | None", wanted: "Tensor | None") -> str | None:
        if found is None or wanted is None:
            return None if found is wanted else "gone after one of the two"
        known = self._buffers.get(name)
        if known is not None and known[1].shape == found.shape == wanted.shape:
            # The elements written, alone: of a cache that is nearly empty, the others would hide the magnitude.
            there = (found != known[1]) | (wanted != known[1])
            found, wanted = found[there], wanted[there]
        return _difference_of_tensors(found.cpu(), wanted.cpu())


def _buffers_of(module: "Module") -> "dict[str, Tensor]":
    import torch

    # Of others (sparse, without memory) no artifact takes one, and torch compares none.
    return {
        name: one.detach()
        for name, one in module.named_buffers(remove_duplicate=False)
        if one.layout is torch.strided and one.device.type != "meta"
    }


def _is_equal(one: "Tensor", other: "Tensor") -> bool:
    import torch

    if (one.dtype, one.device, one.shape) != (other.dtype, other.device, other.shape):
        return False
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


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
        copied = _copy(_single(plain)).expand(tensor.shape)
    else:
        copied = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device).copy_(plain)
    return copied.requires_grad_(tensor.requires_grad)


def _single(tensor: "Tensor") -> "Tensor":
    """Without the repetition of an expanded tensor, whose elements share memory and cannot be written one by one."""
    if 0 not in tensor.stride():
        return tensor
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(sizes, [stride or 1 for stride in tensor.stride()])


def _tensors(tree: Any) -> "list[Tensor]":
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
