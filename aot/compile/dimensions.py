"""Named dimensions: what a source declares, what a recipe makes of it, and which points are compiled.

No torch: sizes are integers here. `aot.compile.shapes` applies them to example inputs.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot.errors import InvalidSpec, SourceNotLoadable
from aot.schema.recipe import Dimension

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SIZE = re.compile(r"(?:(\d+)\s*\*\s*)?([A-Za-z][A-Za-z0-9_]*)(?:\s*([+-])\s*(\d+))?")
_FIELDS = {"low", "high", "multiple_of", "buckets"}


@dataclass(frozen=True)
class Size:
    """One size of one input, as a dimension spells it: `scale * dimension + offset`."""

    dimension: str
    scale: int = 1
    offset: int = 0

    def at(self, value: int) -> int:
        return self.scale * value + self.offset

    def solve(self, size: int) -> int | None:
        """The dimension's value where the size is `size`; None where there is no whole one."""
        value, rest = divmod(size - self.offset, self.scale)
        return value if rest == 0 else None


def parse_size(text: str) -> Size:
    """Read "batch", "2*batch", "batch+1" or "2*batch-1". Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[1] == "0":
        raise ValueError(f"{text!r} is not a dimension: write a name, or for example 2*batch+1")
    offset = int(match[4] or 0) * (-1 if match[3] == "-" else 1)
    return Size(match[2], int(match[1] or 1), offset)


def parse_dimensions(given: Any, entry: str) -> tuple[Dimension, ...]:
    """Return what a factory declares: name to (low, high), or to a dict of a Dimension's fields.

    Raises SourceNotLoadable.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise SourceNotLoadable(f"{entry}: dimensions must be a dict by name, found a {type(given).__name__}")
    try:
        return tuple(_checked(_parse_one(name, value)) for name, value in given.items())
    except ValueError as error:
        raise SourceNotLoadable(
            f"{entry}: {error}", hint='write for example {"batch": (1, 32), "seq": {"buckets": [64, 128]}}'
        ) from error


def _parse_one(name: Any, value: Any) -> Dimension:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a dimension")
    match value:
        case Dimension():
            return value
        case (int() as low, (int() | None) as high):
            return Dimension(name=name, low=low, high=high)
        case Mapping() if value.keys() <= _FIELDS:
            fields = dict(value)
            buckets = fields.pop("buckets", ())
            if not all(isinstance(size, int) for size in (*buckets, *(n for n in fields.values() if n is not None))):
                raise ValueError(f"dimension {name} has a size that is not an integer: {value!r}")
            return Dimension(name=name, buckets=tuple(buckets), **fields)
        case _:
            raise ValueError(f"dimension {name} is {value!r}, wanted (low, high) or a dict of {sorted(_FIELDS)}")


def _checked(dimension: Dimension) -> Dimension:
    """Raises ValueError for sizes that no input can have."""
    name, low, high, step = dimension.name, dimension.low, dimension.high, dimension.multiple_of
    if low < 0 or step < 1 or (high is not None and high < max(low, 1)):
        raise ValueError(f"dimension {name} has no sizes: low {low}, high {high}, multiple_of {step}")
    if high is not None and high // step * step < low:
        raise ValueError(f"dimension {name} has no multiple of {step} between {low} and {high}")
    if any(size < 1 or size % step for size in dimension.buckets):
        raise ValueError(f"dimension {name} has a bucket that is not a positive multiple of {step}")
    if len(set(dimension.buckets)) != len(dimension.buckets):
        raise ValueError(f"dimension {name} names a bucket twice")
    return dimension


def merge_dimensions(
    declared: Iterable[Dimension], wanted: Iterable[Dimension], *, used: Iterable[str]
) -> tuple[Dimension, ...]:
    """Return the dimensions of the source with those of the recipe in place of their namesakes.

    A name that inputs use without declaring it is any size from 1. Raises InvalidSpec for a name that the source
    does not have, and SourceNotLoadable for a declared one that no input has.
    """
    names = tuple(dict.fromkeys(used))
    merged = {name: Dimension(name=name) for name in names}
    for dimension in declared:
        if dimension.name not in merged:
            raise SourceNotLoadable(
                f"dimension {dimension.name} is declared, but no input has it",
                hint="name it in dynamic_shapes, or leave it out",
            )
        merged[dimension.name] = dimension
    for dimension in wanted:
        if dimension.name not in merged:
            raise InvalidSpec(
                f"the recipe names dimension {dimension.name}, the source has {', '.join(names) or 'none'}",
                hint="a recipe narrows or replaces the dimensions that the source names in dynamic_shapes",
            )
        try:
            merged[dimension.name] = _checked(dimension)
        except ValueError as error:
            raise InvalidSpec(f"the recipe is wrong: {error}") from error
    return tuple(merged.values())


def bucket_points(dimensions: Sequence[Dimension]) -> tuple[dict[str, int], ...]:
    """Return every combination of buckets, `({},)` when no dimension has any."""
    bucketed = [dimension for dimension in dimensions if dimension.buckets]
    combinations = itertools.product(*(sorted(dimension.buckets) for dimension in bucketed))
    return tuple(dict(zip((one.name for one in bucketed), sizes, strict=True)) for sizes in combinations)


def is_single(dimension: Dimension) -> bool:
    """True when the range holds one size only, so that code for exactly that size is the better answer."""
    return dimension.high is not None and next_size(dimension, dimension.low + 1) is None


def next_size(dimension: Dimension, at_least: int) -> int | None:
    """The smallest size of the range that is not below `at_least`; None beyond its end."""
    step = dimension.multiple_of
    size = math.ceil(max(at_least, dimension.low) / step) * step
    return size if dimension.high is None or size <= dimension.high else None


def nearest_point(given: Mapping[str, int], coverages: Iterable[Sequence[Dimension]]) -> dict[str, int]:
    """Return the covered sizes nearest to `given`: `given` itself where a coverage has them, or where there is none.

    Names that `given` does not have are left alone.
    """
    points = [
        {**given, **{one.name: _nearest_size(one, given[one.name]) for one in coverage if one.name in given}}
        for coverage in coverages
    ]
    return min(points, key=lambda point: sum(abs(point[name] - given[name]) for name in given), default=dict(given))


def _nearest_size(dimension: Dimension, given: int) -> int:
    size = next_size(dimension, given)
    return dimension.ends[-1] if size is None else size


def traceable_size(dimension: Dimension, given: int) -> int:
    """Return a size of the range to export at, `given` itself where it will do.

    Export takes a size of 0 or 1 (of a multiple: 0 or 1 times the step) for a constant, so it must be above.
    """
    step = dimension.multiple_of
    fits = given >= max(dimension.low, 2 * step) and given % step == 0
    if fits and (dimension.high is None or given <= dimension.high):
        return given
    lowest = next_size(dimension, 2 * step)
    return lowest if lowest is not None else next_size(dimension, dimension.low) or step
