"""The `forward` that stands in a region's instance while a bundle is loaded."""

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Replaced:
    """Calls `call` with the module's own forward and the arguments, until `restore`.

    A copy of the module, or one that is pickled, has its own forward again: the artifact is bound to the tensors of
    this one, and would run the copy on them.
    """

    def __init__(self, module: "Module", call: Call) -> None:
        self.earlier: Any = module.__dict__.get("forward")
        self._module = module
        self._own: Callable[..., Any] = module.forward
        self._call: Call | None = call
        update_wrapper(self, self._own, updated=())  # some libraries ask a forward for its signature
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._call
        return self._own(*args, **kwargs) if call is None else call(self._own, args, kwargs)

    def restore(self) -> None:
        """Give the module its own forward back; where another has been put over this one, only get out of its way."""
        self._call = None
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
