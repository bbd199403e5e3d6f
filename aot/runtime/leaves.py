"""From a nested argument to its leaves, along a recorded tree, with the path of what does not match.

`torch.utils._pytree` could flatten as well, but compares dict orders, takes 20 us, and cannot say where two trees
differ. Trees are recorded by it (`treespec_dumps`), so every node type that it can serialise is known here.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from aot.schema.artifact import Leaf, LeafKind

# Appends the leaves of a value and returns None, or returns why the value does not match.
Collect = Callable[[Any, list[Any]], str | None]
# Returns None when a leaf is what was recorded, or why not.
Check = Callable[[Any], str | None]


def collector(tree: Any, path: str) -> Collect:
    """Return what collects the leaves of a value that must have the shape of the TreeSpec `tree`."""
    if tree.is_leaf():
        return _collect_leaf
    if tree.type in (dict, OrderedDict, defaultdict):
        return _mapping_collector(tree, path)
    if tree.type in (tuple, list):
        return _sequence_collector(tree, path)
    return _custom_collector(tree, path)


def checker(leaf: Leaf, plain: tuple[type, ...], *, path: str) -> Check:
    """Return the check of one leaf, called `path`; `plain` are the tensor types that compiled code may be given."""
    match leaf.kind:
        case LeafKind.TENSOR:
            return lambda value: None if type(value) in plain else f"{path}: wanted a tensor, found {describe(value)}"
        case LeafKind.NONE:
            return lambda value: None if value is None else f"{path}: wanted None, found {describe(value)}"
        case LeafKind.CONSTANT | LeafKind.INTEGER:
            wanted = f"{leaf.constant!r}"
            return lambda value: (
                None if _is_constant(value, leaf) else f"{path}: wanted {wanted}, found {describe(value)}"
            )


def describe(value: Any) -> str:
    """Name a value in a reason, without printing a tensor or a long text."""
    if type(value) in (type(None), bool, int, float):
        return repr(value)
    if type(value) is str:
        return repr(value if len(value) <= 40 else value[:40] + "...")
    return f"a {type(value).__name__}"


def _is_constant(value: Any, leaf: Leaf) -> bool:
    # The type as well: 1, 1.0 and True are equal but were traced differently. By text: 0.0 equals -0.0, and
    # nan does not equal itself.
    return type(value).__name__ == leaf.constant_type and repr(value) == repr(leaf.constant)


def _collect_leaf(value: Any, leaves: list[Any]) -> None:
    leaves.append(value)


def _collect_all(pairs: Sequence[tuple[Collect, Any]], leaves: list[Any]) -> str | None:
    for collect, value in pairs:
        if reason := collect(value, leaves):
            return reason
    return None


def _mapping_collector(tree: Any, path: str) -> Collect:
    keys = tree.context[1] if tree.type is defaultdict else tree.context
    inner = tuple((key, collector(child, f"{path}[{key!r}]")) for key, child in zip(keys, tree.children(), strict=True))

    def collect(value: Any, leaves: list[Any]) -> str | None:
        # Any of the three types, in any order of keys: the compiled code sees leaves only.
        if type(value) not in (dict, OrderedDict, defaultdict):
            return f"{path}: wanted a dict, found {describe(value)}"
        if len(value) != len(inner) or any(key not in value for key, _ in inner):
            return f"{path}: wanted the keys {sorted(map(str, keys))}, found {sorted(map(str, value))}"
        return _collect_all([(part, value[key]) for key, part in inner], leaves)

    return collect


def _sequence_collector(tree: Any, path: str) -> Collect:
    kind = tree.type
    inner = tuple(collector(child, f"{path}[{index}]") for index, child in enumerate(tree.children()))

    def collect(value: Any, leaves: list[Any]) -> str | None:
        if type(value) is not kind:
            return f"{path}: wanted a {kind.__name__}, found {describe(value)}"
        if len(value) != len(inner):
            return f"{path}: wanted {len(inner)} element(s), found {len(value)}"
        return _collect_all(tuple(zip(inner, value, strict=True)), leaves)

    return collect


def _custom_collector(tree: Any, path: str) -> Collect:
    from torch.utils._pytree import SUPPORTED_NODES

    kind, context = tree.type, tree.context
    flatten = SUPPORTED_NODES[kind].flatten_fn
    inner = tuple(collector(child, f"{path}.{index}") for index, child in enumerate(tree.children()))

    def collect(value: Any, leaves: list[Any]) -> str | None:
        if type(value) is not kind:
            return f"{path}: wanted a {kind.__name__}, found {describe(value)}"
        children, found = flatten(value)
        if len(children) != len(inner) or found != context:
            return f"{path}: a {kind.__name__} of another structure than was exported"
        return _collect_all(tuple(zip(inner, children, strict=True)), leaves)

    return collect
