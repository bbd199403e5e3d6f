"""The `forward` that stands in a region's instance while a bundle is loaded."""

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any

from aot.runtime.counters import Miss

if TYPE_CHECKING:
    from torch.nn import Module

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Missed = Callable[[Miss, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Replaced:
    """Until `restore`: calls `call` with the arguments, and `count` where that answers, else `missed`.

    `missed` is given the module's own forward besides.

    A copy of the module, or one that is pickled, has its own forward again: the artifact is bound to the tensors of
    this one, and would run the copy on them.
    """

    def __init__(self, module: "Module", call: Call, *, count: Callable[[], Any], missed: Missed) -> None:
        self.earlier: Any = module.__dict__.get("forward")
        self._module = module
        self._own: Callable[..., Any] = module.forward
        # One value: `restore` lets go of all that it refers to, the artifact among it, and a call has all or nothing.
        self._way: tuple[Call, Callable[[], Any], Missed] | None = (call, count, missed)
        update_wrapper(self, self._own, updated=())  # some libraries ask a forward for its signature
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        way = self._way
        if way is None:
            return self._own(*args, **kwargs)
        call, count, missed = way
        result = call(args, kwargs)
        if result.__class__ is Miss:
            return missed(result, self._own, args, kwargs)
        count()
        return result

    def restore(self) -> None:
        """Give the module its own forward back; where another has been put over this one, only get out of its way."""
        self._way = None
        table = self._module.__dict__
        if table.get("forward") is not self:
            return
        if self.earlier is None:
            del table["forward"]
        else:
            table["forward"] = self.earlier

    def __reduce__(self) -> tuple[Any, ...]:
        return (_own_forward, (self._module,)) if self.earlier is None else (_same, (self.earlier,))


def _own_forward(module: "Module") -> Callable[..., Any]:
    return MethodType(type(module).forward, module)


def _same(value: Any) -> Any:
    return value
