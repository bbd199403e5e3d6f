"""Where the named dimensions sit in an example's inputs, and examples of other sizes.

Between opening a program and exporting it; the proof uses `resize` as well, for the boundaries of a range.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aot.compile.dimensions import (
    Size,
    bucket_points,
    is_single,
    merge_dimensions,
    next_size,
    parse_size,
    traceable_size,
)
from aot.compile.program import Example, Program
from aot.errors import SourceNotLoadable
from aot.schema.artifact import Coverage, CoverageKind
from aot.schema.recipe import Dimension, Recipe

if TYPE_CHECKING:
    from torch import Tensor

Sizes = Mapping[int, Size]  # by axis
_HINT = 'write dynamic_shapes as for torch.export, with names: {"input_ids": {0: "batch", 1: "seq"}}'


@dataclass(frozen=True, kw_only=True)
class Point:
    """One coverage to compile: what it answers for, and the example of a fitting size that it is exported from.

    `sizes` has one entry for each leaf of the example's pytree. `ranged` holds the dimensions that stay open;
    `automatic` leaves every size open that the program does not fix.
    """

    coverage: Coverage
    example: Example
    sizes: tuple[Sizes, ...]
    ranged: Mapping[str, Dimension]
    automatic: bool = False

    @property
    def from_one(self) -> bool:
        """True when sizes of 0 or 1, which torch takes for constants by default, are among the named open ones."""
        return not self.automatic and any(one.low < 2 * one.multiple_of for one in self.ranged.values())

    @property
    def label(self) -> str:
        """For people: `batch=1..32, seq=128`, or `example 0`."""
        parts = [_describe(dimension) for dimension in self.coverage.dimensions]
        named = ", ".join(parts) or ("any size" if self.automatic else "exact")
        return f"{named} (example {self.coverage.example})" if self.coverage.example else named


def plan_points(program: Program, recipe: Recipe) -> tuple[Point, ...]:
    """Return every coverage that `recipe` asks of `program`: each example, for each combination of buckets.

    Raises InvalidSpec and SourceNotLoadable.
    """
    located = tuple(locate(program, index) for index in range(len(program.examples)))
    used = [size.dimension for sizes in located for leaf in sizes for size in leaf.values()]
    dimensions = {
        dimension.name: dimension
        for dimension in merge_dimensions(program.dimensions, recipe.dimensions, used=sorted(set(used)))
    }
    points: list[Point] = []
    for index, sizes in enumerate(located):
        own = {size.dimension for leaf in sizes for size in leaf.values()}
        mine = [dimension for name, dimension in dimensions.items() if name in own]
        points += _plan_example(program.examples[index], index, sizes, mine, recipe.dynamic)
    return tuple(points)


def _plan_example(
    example: Example, index: int, sizes: tuple[Sizes, ...], dimensions: Sequence[Dimension], dynamic: bool | None
) -> Iterator[Point]:
    given = measure(example, sizes)
    if dynamic is False:
        fixed = tuple(Dimension(name=name, low=size, high=size) for name, size in sorted(given.items()))
        coverage = Coverage(kind=CoverageKind.EXACT, dimensions=fixed, example=index)
        yield Point(coverage=coverage, example=example, sizes=sizes, ranged={})
        return
    for bucket in bucket_points(dimensions):
        chosen = [
            Dimension(name=one.name, low=bucket[one.name], high=bucket[one.name]) if one.name in bucket else one
            for one in dimensions
        ]
        yield make_point(example, index, sizes, chosen, bucketed=bool(bucket), automatic=dynamic is True)


def make_point(
    example: Example,
    index: int,
    sizes: tuple[Sizes, ...],
    dimensions: Sequence[Dimension],
    *,
    bucketed: bool = False,
    automatic: bool = False,
) -> Point:
    """Return the point that answers for `dimensions`; one with a single size is compiled for exactly that."""
    given = measure(example, sizes)
    ranged = {dimension.name: dimension for dimension in dimensions if not is_single(dimension)}
    at = {
        one.name: traceable_size(one, given[one.name]) if one.name in ranged else next_size(one, one.low) or one.low
        for one in dimensions
    }
    covered = tuple(
        one if one.name in ranged else Dimension(name=one.name, low=at[one.name], high=at[one.name])
        for one in sorted(dimensions, key=lambda one: one.name)
    )
    kind = CoverageKind.BUCKET if bucketed else CoverageKind.RANGE if ranged or automatic else CoverageKind.EXACT
    return Point(
        coverage=Coverage(kind=kind, dimensions=covered, example=index),
        example=resize(example, sizes, at),
        sizes=sizes,
        ranged=ranged,
        automatic=automatic,
    )


def locate(program: Program, index: int) -> tuple[Sizes, ...]:
    """Return, for each leaf of example `index`, which of its axes are which dimension. Raises SourceNotLoadable."""
    from torch.utils._pytree import tree_leaves

    if program.located is not None:
        return program.located[index]
    example = program.examples[index]
    found: dict[int, Sizes] = {}
    arguments = _bind(program, example)
    shapes = program.dynamic_shapes
    if shapes is not None:
        _require_known(shapes, program)
        _align(_by_name(shapes, arguments), dict(arguments), "dynamic_shapes", found)
    leaves = tree_leaves((example.args, dict(example.kwargs)))
    return tuple(found.get(id(leaf), {}) for leaf in leaves)


def measure(example: Example, sizes: Sequence[Sizes]) -> dict[str, int]:
    """Return the value of each dimension in `example`. Raises SourceNotLoadable where two inputs disagree."""
    values: dict[str, int] = {}
    for leaf, axes in zip(leaves_of(example), sizes, strict=True):
        for axis, size in axes.items():
            value = size.solve(leaf.shape[axis])
            known = values.setdefault(size.dimension, -1 if value is None else value)
            if value is None or known != value:
                raise SourceNotLoadable(
                    f"the example has {size.dimension}={known} in one input and a size of {leaf.shape[axis]} in "
                    f"another that should be {size.scale}*{size.dimension}{size.offset:+d}",
                    hint="give example inputs whose sizes agree with dynamic_shapes",
                )
    return values


def resize(example: Example, sizes: Sequence[Sizes], at: Mapping[str, int]) -> Example:
    """Return `example` with each dimension of the size that `at` gives it: values are cut off, or repeat.

    Every tensor is a copy of its own; one that had to change has no gaps, and its dimensions in the same order.
    """
    from torch import Tensor
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, spec = tree_flatten((example.args, dict(example.kwargs)))
    resized = [
        _resize_leaf(leaf, axes, at) if isinstance(leaf, Tensor) else leaf
        for leaf, axes in zip(leaves, sizes, strict=True)
    ]
    args, kwargs = tree_unflatten(resized, spec)
    return replace(example, args=args, kwargs=kwargs)


def _resize_leaf(tensor: "Tensor", axes: Sizes, at: Mapping[str, int]) -> "Tensor":
    import torch

    with torch.no_grad():
        changed = tensor
        for axis, size in axes.items():
            wanted = size.at(at[size.dimension]) if size.dimension in at else changed.shape[axis]
            if wanted != changed.shape[axis]:
                # Values that exist, rather than new ones: token ids and positions stay in their tables.
                order = torch.arange(wanted, device=tensor.device) % max(1, changed.shape[axis])
                changed = changed.index_select(axis, order)
        return changed.detach().clone() if changed is tensor else lay_out_like(changed, tensor)


def lay_out_like(values: "Tensor", example: "Tensor") -> "Tensor":
    """Return `values` with its dimensions in memory in the example's order: channels-last stays so at every size."""
    if any(stride == 0 for stride, size in zip(example.stride(), example.shape, strict=True) if size > 1):
        return values.contiguous()  # repeated values have no order
    order = sorted(range(values.ndim), key=lambda dim: -example.stride(dim))
    return values.permute(order).contiguous().permute([order.index(dim) for dim in range(values.ndim)])


def other_sizes(ranged: Mapping[str, Dimension], at: Mapping[str, int]) -> dict[str, int]:
    """Return another size for every open dimension, each unlike the others and all of `at` where the ranges allow."""
    taken = set(at.values())
    chosen: dict[str, int] = {}
    for name, dimension in ranged.items():
        step = dimension.multiple_of
        around = [at[name] + step * distance for distance in (1, 2, 3, 4, 5, -1, -2, -3, 7, 11, 13)]
        usable = [size for size in around if size >= 2 and next_size(dimension, size) == size]
        fresh = next((size for size in usable if size not in taken), usable[0] if usable else None)
        if fresh is not None:
            chosen[name] = fresh
            taken.add(fresh)
    return chosen


def leaves_of(example: Example) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return tree_leaves((example.args, dict(example.kwargs)))


def _bind(program: Program, example: Example) -> Mapping[str, Any]:
    try:
        return inspect.signature(program.module.forward).bind(*example.args, **example.kwargs).arguments
    except TypeError as error:
        raise SourceNotLoadable(
            f"the example does not fit {type(program.module).__name__}.forward: {error}",
            hint="args and kwargs are what the module is called with",
        ) from error


def _require_known(shapes: Any, program: Program) -> None:
    """Raises SourceNotLoadable for a name that no call can pass: its sizes would be closed without a word."""
    taken = tuple(inspect.signature(program.module.forward).parameters)
    unknown = [name for name in shapes if name not in taken] if isinstance(shapes, Mapping) else []
    if unknown:
        raise SourceNotLoadable(
            f"dynamic_shapes names {unknown[0]!r}, and {type(program.module).__name__}.forward takes "
            f"{', '.join(taken) or 'nothing'}",
            hint=_HINT,
        )


def _by_name(shapes: Any, arguments: Mapping[str, Any]) -> Any:
    """Dynamic shapes by position become by name; names that this example does not pass are left out."""
    if isinstance(shapes, Mapping):
        return {name: spec for name, spec in shapes.items() if name in arguments}
    if not isinstance(shapes, (tuple, list)) or len(shapes) > len(arguments):
        raise SourceNotLoadable(f"dynamic_shapes does not fit the {len(arguments)} argument(s)", hint=_HINT)
    return dict(zip(arguments, shapes, strict=False))


def _align(spec: Any, value: Any, path: str, found: dict[int, Sizes]) -> None:
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    if spec is None:
        return
    if isinstance(value, Tensor):
        found[id(value)] = _axes(spec, value, path)
        return
    if isinstance(spec, Mapping) and isinstance(value, Mapping):
        if missing := [key for key in spec if key not in value]:
            raise SourceNotLoadable(f"{path} names {missing[0]!r}, which the example does not have", hint=_HINT)
        for key, inner in spec.items():
            _align(inner, value[key], f"{path}[{key!r}]", found)
        return
    # One level down; a registered class is given as the list of its children.
    children = list(value) if isinstance(value, (tuple, list)) else tree_leaves(value, is_leaf=lambda x: x is not value)
    if not isinstance(spec, (tuple, list)) or len(spec) != len(children) or children == [value]:
        raise SourceNotLoadable(f"{path} does not fit a {type(value).__name__}", hint=_HINT)
    for index, (inner, child) in enumerate(zip(spec, children, strict=True)):
        _align(inner, child, f"{path}[{index}]", found)


def _axes(spec: Any, tensor: "Tensor", path: str) -> Sizes:
    pairs = dict(enumerate(spec)) if isinstance(spec, (tuple, list)) else spec
    if not isinstance(pairs, Mapping):
        raise SourceNotLoadable(f"{path} must name the sizes of a tensor, found {spec!r}", hint=_HINT)
    axes: dict[int, Size] = {}
    for axis, name in pairs.items():
        if name is None:
            continue
        if not isinstance(axis, int) or not -tensor.ndim <= axis < tensor.ndim:
            raise SourceNotLoadable(f"{path} names axis {axis!r} of a tensor of rank {tensor.ndim}", hint=_HINT)
        try:
            axes[axis % tensor.ndim] = parse_size(name)
        except (ValueError, AttributeError) as error:
            raise SourceNotLoadable(f"{path}: {name!r} is not a dimension's name", hint=_HINT) from error
    return axes


def _describe(dimension: Dimension) -> str:
    if dimension.low == dimension.high:
        return f"{dimension.name}={dimension.low}"
    step = f" by {dimension.multiple_of}" if dimension.multiple_of > 1 else ""
    return f"{dimension.name}={dimension.low}..{dimension.high or ''}{step}"
