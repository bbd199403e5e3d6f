"""How a call of the module becomes the flat tensors that compiled code takes, and its flat outputs a result again.

One step of every call of a loaded program, between the caller and the input guards; it must cost next to nothing.
A call that does not have the exported form is expected and yields a reason; the caller then goes elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.errors import BindingFailed
from aot.runtime.argument_names import Speak, positional_names, speaker
from aot.runtime.leaves import Check, Collect, checker, collector, describe
from aot.schema.artifact import CallSpec, Leaf, LeafKind

if TYPE_CHECKING:
    from torch import Tensor

MISSING: Any = object()
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
Arguments = tuple[Any, ...]


class _Argument(Struct, frozen=True):
    """One recorded argument: where to find it in a call, and how to get at its leaves (`start` is the first)."""

    name: str
    path: str
    default: Any
    collect: Collect
    start: int
    count: int
    is_leaf: bool


class BoundCall:
    """A CallSpec made ready for the signature of one live module. Safe for any number of threads."""

    def __init__(self, spec: CallSpec, signature: Signature) -> None:
        from torch import Tensor
        from torch.nn import Parameter as ModuleParameter

        self._plain = (Tensor, ModuleParameter)
        speak = speaker(signature)
        self._checks: tuple[Check, ...] = tuple(
            checker(leaf, self._plain, path=speak(leaf.path)) for leaf in spec.inputs
        )
        self._is_tensor = tuple(leaf.kind is LeafKind.TENSOR for leaf in spec.inputs)
        self._positional = positional_names(signature)
        self._defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not Parameter.empty
        }
        self._variadic = any(one.kind is Parameter.VAR_POSITIONAL for one in signature.parameters.values())
        self._arguments = self._read_arguments(spec, speak)
        self.plain_length = self._read_plain_length()
        self.unflatten: Callable[[Sequence[Tensor | None]], Any] = _unflattener(spec)

    def flatten(self, args: Arguments, kwargs: Mapping[str, Any]) -> "tuple[Tensor, ...] | str":
        """Return the flat tensor inputs, or why this call does not have the exported form.

        Keywords and dicts may come in any order, parameters by position or by name, and what equals its default
        may be left out. The reason names the argument.
        """
        if not kwargs and len(args) == self.plain_length:
            plain = self._plain
            for value in args:
                if type(value) not in plain:
                    break
            else:
                return args
        return self._flatten_any(args, kwargs)

    def _flatten_any(self, args: Arguments, kwargs: Mapping[str, Any]) -> "tuple[Tensor, ...] | str":
        positional = self._positional
        if len(args) > len(positional):
            return f"args: wanted at most {len(positional)} positional argument(s), found {len(args)}"
        values = dict(zip(positional, args, strict=False))
        values.update(kwargs)
        if len(values) != len(args) + len(kwargs):
            twice = next(name for name in kwargs if name in positional[: len(args)])
            return f"{twice}: given by position and by name"
        leaves: list[Any] = []
        for argument in self._arguments:
            value = values.pop(argument.name, argument.default)
            if value is MISSING:
                return f"{argument.path}: missing"
            if argument.is_leaf:
                leaves.append(value)
            elif reason := argument.collect(value, leaves):
                return reason
        if values and (reason := self._surplus(values)):
            return reason
        tensors = []
        for value, check, is_tensor in zip(leaves, self._checks, self._is_tensor, strict=True):
            if reason := check(value):
                return reason
            if is_tensor:
                tensors.append(value)
        return tuple(tensors)

    def _surplus(self, values: Mapping[str, Any]) -> str | None:
        # A parameter that was at its default when exported is part of the program: any other value is another one.
        for name, value in values.items():
            default = self._defaults.get(name, MISSING)
            if default is MISSING:
                return f"kwargs[{name!r}]: not an argument of the exported call"
            if value is not default and (type(value) is not type(default) or not _is_same(value, default)):
                return f"{name}: exported with its default {describe(default)}, found {describe(value)}"
        return None

    def _read_arguments(self, spec: CallSpec, speak: Speak) -> tuple[_Argument, ...]:
        args, kwargs = _load_tree(spec.in_spec).children()
        if args.num_children > len(self._positional):
            if not self._variadic:
                raise BindingFailed(
                    f"wanted a forward with {args.num_children} positional parameters, found {len(self._positional)}",
                    hint="the module is not the one that was compiled",
                )
            extra = range(len(self._positional), args.num_children)
            self._positional += tuple(f"*{index}" for index in extra)
        recorded = list(zip(self._positional, args.children(), strict=False))
        places = [f"args[{index}]" for index in range(len(recorded))] + [f"kwargs[{key!r}]" for key in kwargs.context]
        recorded += zip(kwargs.context, kwargs.children(), strict=True)
        arguments, start = [], 0
        for (name, tree), place in zip(recorded, map(speak, places), strict=True):
            default = self._defaults.get(name, MISSING)
            collect = collector(tree, place)
            arguments.append(_Argument(name, place, default, collect, start, tree.num_leaves, tree.is_leaf()))
            start += tree.num_leaves
        if start != len(spec.inputs):
            raise BindingFailed(f"the manifest describes {len(spec.inputs)} input leaves, its tree has {start}")
        return tuple(arguments)

    def _read_plain_length(self) -> int:
        """Return how many leading positional arguments are all that a call of tensors alone needs; -1 for none.

        Then such a call *is* its flat inputs: everything after them is None or a constant, and so by default.
        """
        leading = len(tuple(takewhile(lambda one: one.is_leaf and self._is_tensor[one.start], self._arguments)))
        rest = self._arguments[leading:]
        if tuple(one.name for one in self._arguments[:leading]) != self._positional[:leading]:
            return -1
        for argument in rest:
            leaves: list[Any] = []
            if argument.default is MISSING or argument.collect(argument.default, leaves):
                return -1
            checks = self._checks[argument.start : argument.start + argument.count]
            if any(self._is_tensor[argument.start : argument.start + argument.count]):
                return -1
            if any(check(leaf) for check, leaf in zip(checks, leaves, strict=True)):
                return -1
        return leading


def bind_call(spec: CallSpec, signature: Signature) -> BoundCall:
    """Make `spec` ready for a module whose `forward` has this signature (without `self`).

    Raises BindingFailed when the signature cannot be the one that was exported, or when the trees hold a type that
    this process does not know.
    """
    names = tuple(signature.parameters)
    # A call cannot use the names of `*args` and `**kwargs`, and need not record them.
    usable = tuple(name for name in names if signature.parameters[name].kind not in _VARIADIC)
    if spec.parameters and spec.parameters not in (names, usable):
        raise BindingFailed(
            f"wanted a forward with the parameters {list(spec.parameters)}, found {list(names)}",
            hint="the module is not the one that was compiled",
        )
    return BoundCall(spec, signature)


def _is_same(value: Any, default: Any) -> bool:
    # Other types (a tensor default, say) are the same only as the same object.
    return isinstance(value, bool | int | float | str) and repr(value) == repr(default)


def _load_tree(text: str) -> Any:
    from torch.utils._pytree import treespec_loads

    try:
        return treespec_loads(text)
    except (NotImplementedError, ValueError, AttributeError, ImportError) as error:
        raise BindingFailed(
            f"the recorded call holds a type that this process does not know: {error}",
            hint="import the package that defines it before loading",
        ) from error


def _unflattener(spec: CallSpec) -> Callable[[Sequence["Tensor | None"]], Any]:
    """Return what makes the module's result out of the flat outputs, one a leaf."""
    from torch.utils._pytree import tree_unflatten

    tree = _load_tree(spec.out_spec)
    if tree.num_leaves != len(spec.outputs):
        raise BindingFailed(f"the manifest describes {len(spec.outputs)} output leaves, its tree has {tree.num_leaves}")
    convert = _converter(spec.outputs)
    flat = all(child.is_leaf() for child in tree.children())
    kind, tensors = tree.type, all(leaf.kind is LeafKind.TENSOR for leaf in spec.outputs)
    if tree.is_leaf():
        return itemgetter(0) if tensors else lambda outputs: convert(outputs)[0]
    if flat and kind in (tuple, list):
        return kind if tensors else lambda outputs: kind(convert(outputs))
    if flat and tree.type is dict:
        return lambda outputs: dict(zip(tree.context, convert(outputs), strict=True))
    return lambda outputs: tree_unflatten(convert(outputs), tree)


def _converter(leaves: Sequence[Leaf]) -> Callable[[Sequence["Tensor | None"]], Sequence[Any]]:
    others = tuple((index, leaf) for index, leaf in enumerate(leaves) if leaf.kind is not LeafKind.TENSOR)

    def convert(outputs: Sequence[Any]) -> Sequence[Any]:
        found = list(outputs)
        for index, leaf in others:
            # An int comes out of compiled code as a 0-dim tensor; None and constants are known without asking.
            found[index] = found[index].item() if leaf.kind is LeafKind.INTEGER else leaf.constant
        return found

    return convert if others else lambda outputs: outputs
