"""Named dimensions: declared by sources, narrowed by recipes, and the sizes that are compiled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.compile.dimensions import (
    Size,
    bucket_points,
    is_single,
    merge_dimensions,
    nearest_point,
    next_size,
    parse_dimensions,
    parse_size,
    traceable_size,
)
from aot.errors import InvalidSpec, SourceNotLoadable
from aot.schema.recipe import Dimension


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("batch", Size("batch")),
        ("2*batch", Size("batch", 2)),
        (" 2 * batch + 1 ", Size("batch", 2, 1)),
        ("batch-1", Size("batch", 1, -1)),
    ],
)
def test_a_size_reads_a_name_a_multiple_and_an_offset(text: str, size: Size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2", "0*batch", "batch*batch", "a b", "__import__('os')", "batch//2"])
def test_a_size_that_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a dimension"):
        parse_size(text)


@given(st.integers(1, 9), st.integers(-5, 5), st.integers(0, 1000))
def test_a_size_solved_gives_the_value_back(scale: int, offset: int, value: int) -> None:
    size = Size("n", scale, offset)
    assert size.solve(size.at(value)) == value


def test_a_size_between_two_values_has_no_solution() -> None:
    assert Size("n", 2, 1).solve(4) is None


def test_declared_dimensions_may_be_pairs_or_dicts() -> None:
    declared = {"batch": (1, 32), "seq": {"low": 8, "multiple_of": 8}, "heads": {"buckets": [4, 2]}, "any": (0, None)}
    assert parse_dimensions(declared, "m:f") == (
        Dimension(name="batch", low=1, high=32),
        Dimension(name="seq", low=8, multiple_of=8),
        Dimension(name="heads", buckets=(4, 2)),
        Dimension(name="any", low=0, high=None),
    )


@pytest.mark.parametrize(
    "declared",
    [
        ["batch"],
        {"batch": 32},
        {"batch": (32, 1)},
        {"batch": (1, "many")},
        {"2x": (1, 2)},
        {"batch": {"lowest": 1}},
        {"batch": {"low": 1.5}},
        {"batch": {"buckets": (3,), "multiple_of": 2}},
        {"batch": {"buckets": (2, 2)}},
        {"batch": {"low": 3, "high": 3, "multiple_of": 2}},
    ],
)
def test_declared_dimensions_without_sense_are_the_sources_fault(declared: object) -> None:
    with pytest.raises(SourceNotLoadable, match="m:f"):
        parse_dimensions(declared, "m:f")


def test_a_recipe_replaces_a_dimension_and_leaves_the_others() -> None:
    declared = (Dimension(name="batch", high=32), Dimension(name="seq", high=512))
    wanted = (Dimension(name="seq", buckets=(128, 256)),)
    assert merge_dimensions(declared, wanted, used=("batch", "seq", "free")) == (
        Dimension(name="batch", high=32),
        Dimension(name="seq", buckets=(128, 256)),
        Dimension(name="free"),
    )


def test_a_recipe_with_an_unknown_dimension_names_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match="names dimension length, the source has batch"):
        merge_dimensions((), (Dimension(name="length"),), used=("batch",))


def test_a_recipe_with_an_empty_range_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="no sizes"):
        merge_dimensions((), (Dimension(name="batch", low=4, high=2),), used=("batch",))


def test_a_declared_dimension_that_no_input_has_is_refused() -> None:
    with pytest.raises(SourceNotLoadable, match="no input has it"):
        merge_dimensions((Dimension(name="batch"),), (), used=())


def test_buckets_of_several_dimensions_multiply() -> None:
    dimensions = (Dimension(name="b", buckets=(8, 1)), Dimension(name="free"), Dimension(name="s", buckets=(16,)))
    assert bucket_points(dimensions) == ({"b": 1, "s": 16}, {"b": 8, "s": 16})
    assert bucket_points((Dimension(name="free"),)) == ({},)


@pytest.mark.parametrize(
    ("dimension", "single"),
    [
        (Dimension(name="n", low=3, high=3), True),
        (Dimension(name="n", low=1, high=2), False),
        (Dimension(name="n", low=8, high=15, multiple_of=8), True),
        (Dimension(name="n", low=8, high=16, multiple_of=8), False),
        (Dimension(name="n"), False),
    ],
)
def test_a_range_of_one_size_is_single(dimension: Dimension, single: bool) -> None:
    assert is_single(dimension) is single


@given(st.integers(0, 40), st.integers(0, 60), st.integers(1, 8), st.integers(0, 100))
def test_the_size_to_trace_at_lies_in_the_range(low: int, width: int, step: int, example: int) -> None:
    dimension = Dimension(name="n", low=low, high=low + width, multiple_of=step)
    if next_size(dimension, low) is None or is_single(dimension) or low + width < 2 * step:
        return  # nothing to choose from
    size = traceable_size(dimension, example)
    assert low <= size <= low + width
    assert size % step == 0
    assert size >= 2 * step  # export takes 0 and 1 for constants


def test_the_examples_own_size_is_kept_where_it_will_do() -> None:
    assert traceable_size(Dimension(name="n", low=1, high=32), 7) == 7
    assert traceable_size(Dimension(name="n", low=1, high=32), 1) == 2
    assert traceable_size(Dimension(name="n", low=1, high=32), 40) == 2


@pytest.mark.parametrize(
    ("coverages", "found"),
    [
        ([], 64),
        ([Dimension(name="length", low=2, high=512)], 64),
        ([Dimension(name="length", low=128, high=128), Dimension(name="length", low=512, high=512)], 128),
        ([Dimension(name="length", low=512, high=512), Dimension(name="length", low=64, high=64)], 64),
        ([Dimension(name="length", low=1, high=31, multiple_of=8)], 24),
        ([Dimension(name="length", low=80, high=None, multiple_of=16)], 80),
        ([Dimension(name="other", low=1, high=2)], 64),
    ],
)
def test_the_nearest_covered_size_is_the_given_one_where_it_is_covered(coverages: list[Dimension], found: int) -> None:
    assert nearest_point({"length": 64}, [(one,) for one in coverages]) == {"length": found}
