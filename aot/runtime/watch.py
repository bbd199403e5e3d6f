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
from functools import partial
from operator import attrgetter, getitem, is_, itemgetter, ne
from typing import TYPE_CHECKING, Any

from aot.runtime.liveness import Hooks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

MODE_CHANGED = "the training mode was changed after loading"
_training = itemgetter("training")
_requires_grad = attrgetter("requires_grad")
_version = attrgetter("_version")


class Conduct:
    """How a module behaves, apart from what it holds: the training mode of each part, and the forward hooks."""

    def __init__(self, module: "Module") -> None:
        self.parts = [part.__dict__ for part in module.modules()]
        self.training = list(map(_training, self.parts))
        self.hooks = Hooks(module)

    def change(self) -> str | None:
        """Say what is no longer as it was."""
        if list(map(_training, self.parts)) != self.training:
            return MODE_CHANGED
        return self.hooks.change()


class Tree:
    """Which submodules a module has."""

    def __init__(self, module: "Module", *, anything: bool = False) -> None:
        tables = [part._modules for part in module.modules()]
        self.tables = [table for table in tables if table or anything]
        self.copies = [dict(table) for table in self.tables]

    def is_current(self) -> bool:
        return self.tables == self.copies


class Watch:
    """What a module holds: which submodules, parameters and buffers, and at which addresses.

    With `writes`, also that nobody has written into a tensor; not noticed are writes through `tensor.data`, from
    another process, and into inference tensors, which torch does not count. With `anything`, also what is added
    where nothing was, modes and hooks: everything that may make a misfit fit, short of plain attributes.
    """

    def __init__(self, module: "Module", *, writes: bool = False, anything: bool = False) -> None:
        from torch import Tensor

        tree = Tree(module, anything=anything)  # first: of a part that comes later, nothing would be watched
        tables: list[dict[str, Any]] = [
            table for part in module.modules() for table in (part._parameters, part._buffers)
        ]
        tables = [table for table in tables if table or anything]
        copies = [dict(table) for table in tables]
        tensors = list(_tensors_in(tables, copies))
        self._tables, self._copies = (*tree.tables, *tables), (*tree.copies, *copies)
        # Dicts compare values by identity, then by `==`. Two tensors of several elements raise at that, and so are
        # told apart; those of one element could be equal, and are compared by identity alone.
        single = [entry for entry in tensors if not _has_several(entry[2])]
        self._single_tables = [table for table, _, _ in single]
        self._single_names = [name for _, name, _ in single]
        self._singles = [tensor for _, _, tensor in single]
        self._tensors, self._addresses = _readable((tensor for _, _, tensor in tensors), Tensor.data_ptr)
        self._written, self._versions = _readable(self._tensors if writes else (), _version)
        self._address_of = Tensor.data_ptr
        # Says whether all of it is as it was.
        self.is_current = self.with_conduct(Conduct(module) if anything else None)

    def with_conduct(self, conduct: Conduct | None) -> Callable[[], bool]:
        """Return what says whether everything here is as it was, and nothing of `conduct` has changed either."""
        parts, training, empty, filled, hook_change = _parts_of(conduct)
        single = (self._single_tables, self._single_names, self._singles) if self._singles else ()
        written = (self._written, self._versions) if self._versions else ()
        held = (self._tables, self._copies, self._address_of, self._tensors, self._addresses, single, written)
        return partial(_is_same, (*held, parts, training, empty, filled, hook_change))


def any_requires_grad(tensors: "Iterable[Tensor]") -> bool:
    """True where a gradient for one of them would be recorded."""
    return True in map(_requires_grad, tensors)


def _is_same(state: tuple[Any, ...]) -> bool:
    """Look at all of it. In one tuple: between two calls other code has had the processor's caches for itself."""
    tables, copies, address_of, tensors, addresses, single, written, parts, training, empty, filled, hook_change = state
    try:
        if tables != copies:
            return False
        # Of the objects that were there then: they are there still. One address at a time, for the same reason.
        if any(map(ne, map(address_of, tensors), addresses)):
            return False
        if single and not all(map(is_, map(getitem, single[0], single[1]), single[2])):
            return False
        if written and list(map(_version, written[0])) != written[1]:
            return False
        if list(map(_training, parts)) != training:
            return False
        return not (any(empty) or filled) or hook_change() is None
    except Exception:
        # Tensors of other kinds, places or sizes cannot be compared, and so are not the same.
        return False


def _parts_of(conduct: Conduct | None) -> tuple[Any, ...]:
    if conduct is None:
        return (), [], (), (), None
    hooks = conduct.hooks
    return conduct.parts, conduct.training, hooks.empty, hooks.filled, hooks.change


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
