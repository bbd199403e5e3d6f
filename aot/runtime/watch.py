"""Whether a live module is still the one that was examined: looked at before every call of a loaded program.

Torch tells of none of the changes that matter (`aot.runtime.binding` lists them), so its tables are compared, in C and
without allocating: about 10 microseconds for 120 modules with 100 tensors. What costs nothing to look at costs nothing
to repair: a module that did not fit is examined again as soon as something in it has changed.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter, getitem, is_
from typing import TYPE_CHECKING, Any

from aot.runtime.liveness import watch_hooks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

MODE_CHANGED = "the training mode was changed after loading"
_requires_grad = attrgetter("requires_grad")
_version = attrgetter("_version")


class Watch:
    """The modules and tensors of `module` as they are now: which objects, and at which addresses.

    With `writes`, also that nobody has written into a tensor; not noticed are writes through `tensor.data`, from
    another process, and into inference tensors, which torch does not count. With `anything`, also what is added to
    an empty module, modes and hooks: everything that may make a misfit fit, short of plain attributes.
    """

    def __init__(self, module: "Module", *, writes: bool = False, anything: bool = False) -> None:
        from torch import Tensor

        parts = list(module.modules())
        tables: list[dict[str, Any]] = [
            table for part in parts for table in (part._modules, part._parameters, part._buffers)
        ]
        self._tables = [table for table in tables if table or anything]
        self._copies = [dict(table) for table in self._tables]
        tensors = [
            (table, name, value)
            for table, copy in zip(self._tables, self._copies, strict=True)
            for name, value in copy.items()
            if isinstance(value, Tensor)
        ]
        # Dicts compare values by identity, then by `==`: two tensors of several elements raise then, which says that
        # they are two; those of one element could be equal.
        single = [entry for entry in tensors if _size_of(entry[2]) <= 1]
        self._single_tables = [table for table, _, _ in single]
        self._single_names = [name for _, name, _ in single]
        self._singles = [tensor for _, _, tensor in single]
        self._address_of = Tensor.data_ptr
        self._tensors, self._addresses = _readable((tensor for _, _, tensor in tensors), Tensor.data_ptr)
        self._written, self._versions = _readable(self._tensors, _version) if writes else ([], [])
        self._conduct = Conduct(module) if anything else None

    def is_current(self) -> bool:
        """Say whether all of it is as it was."""
        try:
            if self._tables != self._copies:
                return False
            if self._singles and not all(
                map(is_, map(getitem, self._single_tables, self._single_names), self._singles)
            ):
                return False
            # Of the objects that were there then: they are the same ones.
            if list(map(self._address_of, self._tensors)) != self._addresses:
                return False
        except Exception:
            # Tensors of two kinds, places or sizes are not comparable; neither are they the same.
            return False
        if self._versions and list(map(_version, self._written)) != self._versions:
            return False
        return self._conduct is None or self._conduct.is_current()

    def is_same_tree(self) -> bool:
        """Say whether the submodules are the same ones; their tensors may be others."""
        return all(
            map(
                is_,
                _modules_of(self._tables),
                _modules_of(self._copies),
            )
        ) and sum(map(len, self._tables)) == sum(map(len, self._copies))


class Conduct:
    """How a module behaves, apart from what it holds: the training mode of each part, and the forward hooks."""

    def __init__(self, module: "Module") -> None:
        self._tables = [part.__dict__ for part in module.modules()]
        self._training = [table["training"] for table in self._tables]
        self._hook_change = watch_hooks(module)

    def change(self) -> str | None:
        """Say what is no longer as it was."""
        if [table["training"] for table in self._tables] != self._training:
            return MODE_CHANGED
        return self._hook_change()

    def is_current(self) -> bool:
        return self.change() is None


def any_requires_grad(tensors: "Iterable[Tensor]") -> bool:
    """True where a gradient of one of them would be recorded."""
    return True in map(_requires_grad, tensors)
