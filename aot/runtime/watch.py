"""Whether a live module is still the one that was examined: looked at before every call of a loaded program.

Nothing that torch offers tells of all the changes that matter: there are hooks for registering a parameter, none for
`_apply`, and `p.data = x` (LoRA merges, weight reloads) passes through no Python at all. So the module's tables and the
addresses of its tensors are compared, in C and without allocating: about 10 microseconds for 120 modules with 100
tensors. That sees a replaced or deleted Parameter, buffer or submodule, `load_state_dict(assign=True)`, `.to()`,
`.half()`, any other `_apply`, `p.data = x`, `swap_tensors`, `functional_call`, and a tie undone. A module that did not
fit is watched as well, and examined again when something in it has changed.

Not noticed after loading: a plain attribute, a method or a class that was exchanged, and, because address and object
stay, a shape, stride or dtype changed in place over the same memory (`p.t_()`, `p.data = p.data.view(...)`) or an
exchanged `_parameters` dict. After such a change load again. Writes into a tensor need no notice.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, getitem, is_
from typing import TYPE_CHECKING, Any

from aot.runtime.liveness import watch_hooks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

MODE_CHANGED = "the training mode was changed after loading"
_requires_grad = attrgetter("requires_grad")
_version = attrgetter("_version")


class Tree:
    """Which submodules a module has."""

    def __init__(self, module: "Module", *, anything: bool = False) -> None:
        tables = [part._modules for part in module.modules()]
        self._tables = [table for table in tables if table or anything]
        self._copies = [dict(table) for table in self._tables]

    def is_current(self) -> bool:
        return self._tables == self._copies


class Watch:
    """What a module holds: which submodules, parameters and buffers, and at which addresses.

    With `writes`, also that nobody has written into a tensor; not noticed are writes through `tensor.data`, from
    another process, and into inference tensors, which torch does not count. With `anything`, also what is added
    where nothing was, modes and hooks: everything that may make a misfit fit, short of plain attributes.
    """

    def __init__(self, module: "Module", *, writes: bool = False, anything: bool = False) -> None:
        from torch import Tensor

        self._tree = Tree(module, anything=anything)
        tables: list[dict[str, Any]] = [
            table for part in module.modules() for table in (part._parameters, part._buffers)
        ]
        self._tables = [table for table in tables if table or anything]
        self._copies = [dict(table) for table in self._tables]
        tensors = list(_tensors_in(self._tables, self._copies))
        # Dicts compare values by identity, then by `==`. Two tensors of several elements raise at that, and so are
        # told apart; those of one element could be equal, and are compared by identity alone.
        single = [entry for entry in tensors if not _has_several(entry[2])]
        self._single_tables = [table for table, _, _ in single]
        self._single_names = [name for _, name, _ in single]
        self._singles = [tensor for _, _, tensor in single]
        self._address_of = Tensor.data_ptr
        self._tensors, self._addresses = _readable((tensor for _, _, tensor in tensors), Tensor.data_ptr)
        self._written, self._versions = _readable(self._tensors if writes else (), _version)
        self._conduct = Conduct(module) if anything else None

    def is_current(self) -> bool:
        """Say whether all of it is as it was."""
        try:
            if not self._tree.is_current() or self._tables != self._copies:
                return False
            singles = map(getitem, self._single_tables, self._single_names)
            if self._singles and not all(map(is_, singles, self._singles)):
                return False
            # Of the objects that were there then: they are there still.
            if list(map(self._address_of, self._tensors)) != self._addresses:
                return False
            if self._versions and list(map(_version, self._written)) != self._versions:
                return False
        except Exception:
            # Tensors of other kinds, places or sizes cannot be compared, and so are not the same.
            return False
        return self._conduct is None or self._conduct.change() is None


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


def any_requires_grad(tensors: "Iterable[Tensor]") -> bool:
    """True where a gradient for one of them would be recorded."""
    return True in map(_requires_grad, tensors)


def _tensors_in(
    tables: "list[dict[str, Any]]", copies: "list[dict[str, Any]]"
) -> "Iterator[tuple[dict[str, Any], str, Tensor]]":
    for table, copy in zip(tables, copies, strict=True):
        for name, value in copy.items():
            if value is not None:
                yield table, name, value


def _has_several(tensor: "Tensor") -> bool:
    try:
        return tensor.numel() > 1
    except (RuntimeError, ValueError):  # lazy, without a shape yet
        return False


def _readable(tensors: "Iterable[Tensor]", read: "Callable[[Tensor], int]") -> "tuple[list[Tensor], list[int]]":
    """Return the tensors that `read` works for, and what it reads; fake tensors have no memory."""
    found, values = [], []
    for tensor in tensors:
        try:
            values.append(read(tensor))
        except Exception:
            continue
        found.append(tensor)
    return found, values
