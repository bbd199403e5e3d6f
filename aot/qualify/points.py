"""At which sizes a coverage is proven: its boundaries. Pure: no tensors, no files.

A coverage answers for every size in its ranges, and what goes wrong goes wrong at the edges: batch 1 (a stride of a
dimension with one element says nothing), the first size after it, and the upper bound (a loop's tail, an index that
overflows). So every corner is tried, up to a few.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

from aot.errors import MalformedDocument
from aot.runtime.expression import FUNCTIONS, read_expression
from aot.schema.artifact import Artifact
from aot.schema.guard import RELATIONS, InputGuard
from aot.schema.recipe import Dimension

Point = dict[str, int]
Sizes = tuple[tuple[int, ...], ...]

MOST_POINTS = 8
# Where a dimension has no upper bound.
OPEN_SIZE = 1024
# Elements of all inputs together, beyond which an open dimension is tried at a smaller size.
OPEN_ELEMENTS = 1 << 22


def points_of(
    dimensions: Sequence[Dimension],
    *,
    sizes_at: Callable[[Point], Sizes],
    guards: Sequence[InputGuard] = (),
    example: Mapping[str, int] | None = None,
    most: int = MOST_POINTS,
) -> tuple[Point, ...]:
    """Return the points to try, the smallest first: `({},)` where there is no dimension.

    The `example`'s own sizes are one of them, where they lie within the coverage: they are what its author thinks of
    as a usual call, and what speed is measured at there decides for calls like it.

    Every dimension stands at its lowest and at its highest size at one point at least, as far as `guards` (the
    artifact's, over the sizes that `sizes_at` gives) relate sizes to each other. Dimensions without an upper bound go
    up to OPEN_SIZE, or to where all inputs together have OPEN_ELEMENTS elements.
    """
    if not dimensions:
        return ({},)
    corners = [_within_reach(point, dimensions, sizes_at) for point in _corners(dimensions, most)]
    if example is not None and _is_within(example, dimensions):
        corners = [*corners[: most - 1], {one.name: example[one.name] for one in dimensions}]
    held = [point for point in corners if relations_hold(guards, sizes_at(point))]
    distinct = list({tuple(sorted(point.items())): point for point in held}.values())[:most]
    return tuple(sorted(distinct, key=lambda point: prod(point.values())))


def boundaries(dimension: Dimension) -> tuple[int, ...]:
    """Return the lowest size, the next one and the highest, each once: 1, 2, 32 for the range 1 to 32."""
    step = max(1, dimension.multiple_of)
    low, high = dimension.ends[0], dimension.ends[-1]
    if dimension.is_open:
        high = max(low, OPEN_SIZE // step * step)
    return tuple(dict.fromkeys(size for size in (low, low + step, high) if size <= high))


def dimensions_of(artifact: Artifact, example: Mapping[str, int]) -> tuple[Dimension, ...]:
    """Return the coverage's dimensions, and one for each symbol of the inputs that nobody named.

    Sizes that export left open by itself have no stated range that a program must answer for everywhere; they are
    tried at the `example`'s size and the next one.
    """
    named = {one.name for one in artifact.coverage.dimensions}
    others = dict.fromkeys(
        size for meta in artifact.inputs for size in meta.shape if isinstance(size, str) and size.isidentifier()
    )
    unnamed = [
        Dimension(name=name, low=example[name], high=example[name] + 1)
        for name in others
        if name not in named and name in example
    ]
    return (*artifact.coverage.dimensions, *unnamed)


def relations_hold(guards: Sequence[InputGuard], sizes: Sizes) -> bool:
    """Say whether `sizes` of the flat inputs meet the conditions between them that the artifact was exported under."""
    return all(size >= 0 for shape in sizes for size in shape) and all(
        _holds(guard, sizes) for guard in guards if guard.kind in RELATIONS
    )


def evaluate(expression: str, sizes: Sequence[Sequence[int]]) -> int:
    """Return the value of a guard's expression over `s[input][dim]`. Raises MalformedDocument."""

    def name_size(position: int, dim: int) -> str | None:
        known = 0 <= position < len(sizes) and 0 <= dim < len(sizes[position])
        return f"s[{position}][{dim}]" if known else None

    # Rebuilt from checked parts: the manifest's text itself is never executed.
    source = read_expression(expression, name_size).source
    try:
        return int(eval(source, {"__builtins__": {}, **FUNCTIONS, "s": sizes}))
    except ArithmeticError as error:
        raise MalformedDocument(
            f"the expression {expression[:80]!r} has no value at sizes {sizes}: {error}",
            hint="the manifest does not fit this version of aot",
        ) from error


def describe_point(point: Mapping[str, int]) -> str:
    """Return the point as people read it: "batch 1, seq 512", or "the example"."""
    return ", ".join(f"{name} {size}" for name, size in point.items()) or "the example"


def _holds(guard: InputGuard, sizes: Sizes) -> bool:
    if guard.kind == "expression":
        return guard.value is None or bool(evaluate(guard.value, sizes))
    if guard.input is None or guard.dim is None:
        return True
    found = sizes[guard.input][guard.dim]
    if guard.kind == "divisible":
        return not guard.low or found % guard.low == 0
    return guard.other is None or found == sizes[guard.other[0]][guard.other[1]]


def _corners(dimensions: Sequence[Dimension], most: int) -> list[Point]:
    """All lowest, all highest, then the other corners or each highest alone, then one step beside the lowest."""
    ends = {one.name: boundaries(one) for one in dimensions}
    low = {name: sizes[0] for name, sizes in ends.items()}
    high = {name: sizes[-1] for name, sizes in ends.items()}
    moving = [name for name in ends if low[name] != high[name]]
    found = [low, high]
    if 2 ** len(moving) <= most:
        outer = [(low[name], high[name]) for name in moving]
        found += [{**low, **dict(zip(moving, sizes, strict=True))} for sizes in product(*outer)]
    else:
        found += [{**low, name: high[name]} for name in moving]
    return [*found, {name: sizes[min(1, len(sizes) - 1)] for name, sizes in ends.items()}]


def _is_within(point: Mapping[str, int], dimensions: Sequence[Dimension]) -> bool:
    return all(
        one.name in point
        and one.low <= point[one.name] <= (one.high if one.high is not None else point[one.name])
        and point[one.name] % max(1, one.multiple_of) == 0
        for one in dimensions
    )


def _within_reach(point: Point, dimensions: Sequence[Dimension], sizes_at: Callable[[Point], Sizes]) -> Point:
    """Halve dimensions that have no upper bound until the inputs together are small enough."""
    open_ones = [one for one in dimensions if one.is_open]
    reached = dict(point)
    for _ in range(OPEN_SIZE.bit_length() if open_ones else 0):
        if sum(prod(shape) for shape in sizes_at(reached)) <= OPEN_ELEMENTS:
            break
        for one in open_ones:
            step = max(1, one.multiple_of)
            reached[one.name] = max(boundaries(one)[0], reached[one.name] // 2 // step * step)
    return reached
