"""The calling convention and the coverage of a function, from one call of the program: there is no exported program.

Dynamo's own guards check the same at each call; these are what `aot` reads, explains, proves and checks first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.compile.call_spec import leaf_paths, output_paths
from aot.compile.dimensions import Size
from aot.compile.guards import Described
from aot.compile.program import Example
from aot.compile.shapes import Point
from aot.errors import SourceNotExportable
from aot.runtime.argument_names import Speak
from aot.schema.artifact import CallSpec, Leaf, LeafKind, TensorMeta
from aot.schema.guard import InputGuard
from aot.schema.recipe import Dimension

if TYPE_CHECKING:
    from torch import Tensor

_CONSTANTS = (bool, int, float, str)


def describe_call(
    point: Point, result: Any, *, parameters: Sequence[str], written: frozenset[int], speak: Speak = str
) -> Described:
    """Return what a pod must know to call the program at `point`, whose example gives `result`.

    `written`: positions of the flat inputs that the program writes into. Raises SourceNotExportable for leaves that
    cannot be carried, and for open sizes of an input that has gaps, naming them as `speak` does.
    """
    from torch import Tensor
    from torch.utils._pytree import tree_flatten, treespec_dumps

    example = point.example
    leaves, in_tree = tree_flatten((example.args, dict(example.kwargs)))
    results, out_tree = tree_flatten(result)
    inputs = [_leaf(value, path, speak) for value, path in zip(leaves, leaf_paths(in_tree), strict=True)]
    outputs = [_output(value, path) for value, path in zip(results, output_paths(out_tree), strict=True)]
    tensors = [
        _Input(leaf.path, value, {axis: size for axis, size in axes.items() if size.dimension in point.ranged}, speak)
        for leaf, value, axes in zip(inputs, leaves, point.sizes, strict=True)
        if isinstance(value, Tensor)
    ]
    try:
        call = CallSpec(
            in_spec=treespec_dumps(in_tree),
            out_spec=treespec_dumps(out_tree),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            parameters=tuple(parameters),
        )
    except (NotImplementedError, ValueError, TypeError) as error:
        raise SourceNotExportable(
            f"the call has a container with no serialised form: {error}",
            hint="use tuples, lists and dicts, or classes registered with torch.export.register_dataclass",
        ) from error
    return Described(
        inputs=tuple(one.describe() for one in tensors),
        outputs=tuple(
            _describe(value, leaf.path, shape=tuple(value.shape), stride=value.stride())
            for value, leaf in zip(results, outputs, strict=True)
            if isinstance(value, Tensor)
        ),
        input_guards=tuple(_guards(tensors, point.ranged, written)),
        call=call,
    )


class _Input:
    """One flat tensor input; `axes` are those of its sizes that stay open."""

    def __init__(self, path: str, value: "Tensor", axes: Mapping[int, Size], speak: Speak) -> None:
        import torch

        if value.layout is not torch.strided:
            raise SourceNotExportable(f"{speak(path)} is a {value.layout} tensor; compiled code takes dense ones")
        self.path, self.value, self.axes, self._speak = path, value, axes, speak

    def describe(self) -> TensorMeta:
        shape = tuple(_spell(self.axes[dim]) if dim in self.axes else size for dim, size in enumerate(self.value.shape))
        return _describe(self.value, self.path, shape=shape, stride=() if self.axes else self.value.stride())

    def strides(self, position: int) -> tuple[int | str, ...]:
        """Return each stride as a number, or as a product over the open sizes inside of it."""
        value = self.value
        if not self.axes:
            return value.stride()
        order = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
        found: dict[int, int | str] = {}
        for place, dim in enumerate(order):
            inner = order[place + 1 :]
            number, names = 1, []
            for other in inner:
                if other in self.axes:
                    names.append(f"s[{position}][{other}]")
                else:
                    number *= value.shape[other]
            whole = number
            for other in inner:
                whole *= value.shape[other] if other in self.axes else 1
            if value.shape[dim] > 1 and whole != value.stride(dim):
                raise SourceNotExportable(
                    f"{self._speak(self.path)} has gaps between its elements, and sizes that stay open",
                    hint="make it contiguous in the factory, or give its dimensions buckets",
                )
            words = [str(number)] if number != 1 or not names else []
            found[dim] = number if not names else " * ".join((*words, *names))
        return tuple(found[dim] for dim in range(value.dim()))


def _guards(
    tensors: Sequence[_Input], ranged: Mapping[str, Dimension], written: frozenset[int]
) -> Iterator[InputGuard]:
    first: dict[str, tuple[int, int]] = {}
    for position, one in enumerate(tensors):
        yield InputGuard(kind="dtype", input=position, value=str(one.value.dtype).removeprefix("torch."))
        yield InputGuard(kind="device", input=position, value=one.value.device.type)
        yield InputGuard(kind="rank", input=position, low=one.value.dim())
        for dim, size in enumerate(one.value.shape):
            named = one.axes.get(dim)
            if named is None:
                yield InputGuard(kind="size", input=position, dim=dim, low=size)
            else:
                yield from _open_size(named, (position, dim), ranged, first)
        yield InputGuard(kind="stride", input=position, strides=one.strides(position))
    yield from (InputGuard(kind="apart", input=position) for position in sorted(written))
    yield InputGuard(kind="no-autocast")
    yield InputGuard(kind="no-grad")


def _open_size(
    size: Size, place: tuple[int, int], ranged: Mapping[str, Dimension], first: dict[str, tuple[int, int]]
) -> Iterator[InputGuard]:
    if (size.scale, size.offset) != (1, 0):
        raise SourceNotExportable(
            f"route function leaves open only sizes that are a dimension themselves, found {_spell(size)}",
            hint="give the dimension buckets, or compile for exact sizes with dynamic = false",
        )
    position, dim = place
    if known := first.get(size.dimension):
        yield InputGuard(kind="equal", input=position, dim=dim, other=known)
        return
    first[size.dimension] = place
    dimension = ranged[size.dimension]
    yield InputGuard(kind="range", input=position, dim=dim, low=dimension.low, high=dimension.high)
    if dimension.multiple_of > 1:
        yield InputGuard(kind="divisible", input=position, dim=dim, low=dimension.multiple_of)


def _leaf(value: Any, path: str, speak: Speak) -> Leaf:
    from torch import Tensor

    if isinstance(value, Tensor):
        return Leaf(kind=LeafKind.TENSOR, path=path)
    if value is None:
        return Leaf(kind=LeafKind.NONE, path=path)
    if type(value) in _CONSTANTS:
        return Leaf(kind=LeafKind.CONSTANT, path=path, constant=value, constant_type=type(value).__name__)
    raise SourceNotExportable(
        f"{speak(path)} is a {type(value).__name__}; a call takes tensors, numbers, texts and None",
        hint="pass tensors, or make it an attribute of the module",
    )


def _output(value: Any, path: str) -> Leaf:
    from torch import Tensor

    if isinstance(value, Tensor):
        return Leaf(kind=LeafKind.TENSOR, path=path)
    if value is None:
        return Leaf(kind=LeafKind.NONE, path=path)
    if type(value) is int:
        return Leaf(kind=LeafKind.INTEGER, path=path)
    raise SourceNotExportable(
        f"{path} of the result is a {type(value).__name__}; a result holds tensors, integers and None",
        hint="return tensors",
    )


def _describe(value: "Tensor", path: str, *, shape: tuple[int | str, ...], stride: tuple[int | str, ...]) -> TensorMeta:
    return TensorMeta(
        path=path,
        dtype=str(value.dtype).removeprefix("torch."),
        shape=shape,
        stride=tuple(stride),
        device=value.device.type,
    )


def _spell(size: Size) -> str:
    scaled = size.dimension if size.scale == 1 else f"{size.scale}*{size.dimension}"
    return scaled if size.offset == 0 else f"{scaled}{size.offset:+d}"


def flat_tensors(example: Example) -> "list[Tensor]":
    """Return the tensors among the example's leaves, in their order."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves((example.args, dict(example.kwargs))) if isinstance(leaf, Tensor)]
