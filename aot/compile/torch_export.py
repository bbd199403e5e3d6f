"""A defect of torch.export that stands in the way of most transformer blocks, worked around: torch 2.11 to 2.13.

Calls that reach `**kwargs` of a forward cannot be exported with open sizes: one place counts those arguments twice,
once under their own names and once as the dict (`torch.export._trace._get_range_constraints`), and stumbles over the
difference.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from torch.nn import Module

_PLACES = ("torch.export.dynamic_shapes", "torch.export._trace", "torch._export.non_strict_utils")


@contextlib.contextmanager
def extra_keywords(module: "Module", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Let torch.export take each argument of `**kwargs` as one of its own, where this call has any."""
    signature = inspect.signature(module.forward)
    name = next((one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD), None)
    if name is None or not signature.bind(*args, **kwargs).arguments.get(name):
        yield
        return
    import importlib

    with contextlib.ExitStack() as stack:
        for place in _PLACES:
            found = importlib.import_module(place)
            if hasattr(found, "_combine_args"):
                stack.enter_context(patch.object(found, "_combine_args", _combine))
        yield


def _combine(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What torch's function of that name returns, with the arguments of `**kwargs` spread out."""
    from torch.nn import Module

    function = module.forward if isinstance(module, Module) else module
    signature = inspect.signature(function)
    arguments = dict(signature.bind(*args, **(kwargs or {})).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments
