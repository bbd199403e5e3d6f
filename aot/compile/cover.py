"""What a compiled program really answers for, and what of the wanted range is left over.

Inductor decides by size as well: a program exported for batch 1..32 may come out right for less than 16 only, and
says so nowhere but in its guards. What is left over is then compiled again, from an example of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from aot.compile.dimensions import Size, next_size
from aot.compile.shapes import Point, make_point
from aot.schema.artifact import CoverageKind, LeafKind
from aot.schema.recipe import Dimension

if TYPE_CHECKING:
    from aot.compile.guards import Described

Range = tuple[int, int | None]


def answered_ranges(point: Point, described: "Described") -> dict[str, Range]:
    """Return, for each dimension that `point` leaves open, the values that the program's guards accept."""
    positions = [index for index, leaf in enumerate(described.call.inputs) if leaf.kind is LeafKind.TENSOR]
    ranges: dict[str, Range] = {name: (one.low, one.high) for name, one in point.ranged.items()}
    for position, leaf in enumerate(positions):
        for axis, size in point.sizes[leaf].items():
            if size.dimension not in ranges:
                continue
            for guard in described.input_guards:
                if (guard.input, guard.dim) != (position, axis) or guard.kind not in ("range", "size"):
                    continue
                high = guard.low if guard.kind == "size" else guard.high
                ranges[size.dimension] = _meet(ranges[size.dimension], _solve(size, (guard.low or 0, high)))
    return ranges


def narrow(point: Point, ranges: Mapping[str, Range], *, constraints: tuple[str, ...] = ()) -> Point:
    """Return `point` with a coverage that promises no more than `ranges` under `constraints`."""
    dimensions = tuple(
        msgspec.structs.replace(one, low=ranges[one.name][0], high=ranges[one.name][1]) if one.name in ranges else one
        for one in point.coverage.dimensions
    )
    coverage = msgspec.structs.replace(point.coverage, dimensions=dimensions, constraints=constraints)
    return replace(point, coverage=coverage)


def left_over(point: Point, ranges: Mapping[str, Range]) -> Iterator[Point]:
    """Yield points that together answer for what `point` was to cover and `ranges` does not."""
    inner = {one.name: one for one in point.coverage.dimensions}
    for name, (low, high) in ranges.items():
        wanted = point.ranged[name]
        for piece in _outside(wanted, low, high):
            yield _point_like(point, [piece if one.name == name else one for one in inner.values()])
        inner[name] = msgspec.structs.replace(wanted, low=low, high=high)


def _outside(wanted: Dimension, low: int, high: int | None) -> Iterator[Dimension]:
    if wanted.low < low:
        below = msgspec.structs.replace(wanted, high=low - 1)
        if next_size(below, below.low) is not None:
            yield below
    if high is not None and (wanted.high is None or high < wanted.high):
        above = msgspec.structs.replace(wanted, low=high + 1)
        if next_size(above, above.low) is not None:
            yield above


def _point_like(point: Point, dimensions: Sequence[Dimension]) -> Point:
    return make_point(
        point.example,
        point.coverage.example,
        point.sizes,
        dimensions,
        bucketed=point.coverage.kind is CoverageKind.BUCKET,
        automatic=point.automatic,
    )


def _solve(size: Size, found: Range) -> Range:
    low = -(-(found[0] - size.offset) // size.scale)
    high = None if found[1] is None else (found[1] - size.offset) // size.scale
    return low, high


def _meet(first: Range, second: Range) -> Range:
    highs = [high for high in (first[1], second[1]) if high is not None]
    return max(first[0], second[0]), min(highs, default=None)
