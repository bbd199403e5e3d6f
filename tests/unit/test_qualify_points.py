"""At which sizes a coverage is proven."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import MalformedDocument
from aot.qualify.points import (
    MOST_POINTS,
    OPEN_ELEMENTS,
    OPEN_SIZE,
    Point,
    Sizes,
    boundaries,
    describe_point,
    dimensions_of,
    evaluate,
    points_of,
    relations_hold,
)
from aot.schema.artifact import Coverage, CoverageKind, TensorMeta
from aot.schema.guard import InputGuard
from aot.schema.recipe import Dimension
from tests.builders import an_artifact

BATCH = Dimension(name="batch", low=1, high=32)
SEQ = Dimension(name="seq", low=8, high=512, multiple_of=8)


def sizes_of(point: Point) -> Sizes:
    return (tuple(point.values()),)


def test_an_exact_coverage_has_one_point() -> None:
    assert points_of((), sizes_at=sizes_of) == ({},)


def test_a_range_is_tried_at_its_lowest_next_and_highest_size() -> None:
    assert points_of((BATCH,), sizes_at=sizes_of) == ({"batch": 1}, {"batch": 2}, {"batch": 32})


def test_the_example_is_tried_where_the_coverage_holds_it() -> None:
    tried = [
        [point["batch"] for point in points_of((BATCH,), sizes_at=sizes_of, example=example)]
        for example in ({"batch": 7, "other": 1}, {"batch": 2}, {"batch": 33}, {"other": 7}, {})
    ]
    assert tried == [[1, 2, 7, 32], [1, 2, 32], [1, 2, 32], [1, 2, 32], [1, 2, 32]]
    off_step = points_of((SEQ,), sizes_at=sizes_of, example={"seq": 100})
    assert {"seq": 100} not in off_step


def test_the_example_is_tried_among_many_dimensions_too() -> None:
    many = tuple(Dimension(name=f"d{index}", low=1, high=9) for index in range(9))
    example = {f"d{index}": 5 for index in range(9)}
    found = points_of(many, sizes_at=sizes_of, example=example)
    assert example in found and len(found) == MOST_POINTS


def test_steps_are_respected_at_both_ends() -> None:
    assert boundaries(Dimension(name="seq", low=5, high=509, multiple_of=8)) == (8, 16, 504)


def test_a_fixed_size_is_one_boundary() -> None:
    assert boundaries(Dimension(name="seq", low=128, high=128)) == (128,)


def test_a_size_of_zero_is_not_tried() -> None:
    assert boundaries(Dimension(name="batch", low=0, high=4)) == (1, 2, 4)


def test_two_ranges_are_tried_at_every_corner() -> None:
    found = points_of((BATCH, SEQ), sizes_at=sizes_of)
    corners = [{"batch": b, "seq": s} for b in (1, 32) for s in (8, 512)]
    assert all(corner in found for corner in corners)
    assert {"batch": 2, "seq": 16} in found
    assert found[0] == {"batch": 1, "seq": 8}
    assert found[-1] == {"batch": 32, "seq": 512}


def test_many_ranges_keep_to_the_cap_with_every_end_tried() -> None:
    dimensions = tuple(Dimension(name=f"d{index}", low=1, high=9) for index in range(6))
    found = points_of(dimensions, sizes_at=sizes_of)
    assert len(found) == MOST_POINTS
    for one in dimensions:
        assert {point[one.name] for point in found} >= {1, 9}


@pytest.mark.parametrize("high", [None, 2**63 - 1])
def test_a_dimension_without_a_bound_is_tried_at_a_sane_size(high: int | None) -> None:
    assert boundaries(Dimension(name="batch", high=high)) == (1, 2, OPEN_SIZE)


def test_an_open_dimension_stays_within_reach_of_memory() -> None:
    dimensions = (Dimension(name="batch"), Dimension(name="side"))

    def images(point: Point) -> Sizes:
        return ((point["batch"], 3, point["side"], point["side"]),)

    for point in points_of(dimensions, sizes_at=images):
        assert point["batch"] * 3 * point["side"] ** 2 <= OPEN_ELEMENTS


def test_a_bound_that_was_stated_is_tried_however_large() -> None:
    found = points_of((Dimension(name="n", low=1, high=100_000),), sizes_at=lambda point: ((point["n"], 1000),))
    assert found[-1] == {"n": 100_000}


def test_corners_that_break_a_relation_between_sizes_lie_outside() -> None:
    at_most = InputGuard(kind="expression", value="s[0][0] <= s[0][1]")
    dimensions = (Dimension(name="a", low=1, high=9), Dimension(name="b", low=1, high=9))
    found = points_of(dimensions, sizes_at=sizes_of, guards=(at_most,))
    assert {"a": 9, "b": 1} not in found
    assert {"a": 1, "b": 9} in found


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (InputGuard(kind="divisible", input=0, dim=0, low=4), True),
        (InputGuard(kind="divisible", input=0, dim=1, low=4), False),
        (InputGuard(kind="equal", input=0, dim=0, other=(1, 0)), True),
        (InputGuard(kind="equal", input=0, dim=1, other=(1, 0)), False),
        (InputGuard(kind="expression", value="s[0][0] // 2 == s[1][1]"), True),
        (InputGuard(kind="range", input=0, dim=0, low=100, high=200), True),  # no relation: judged by running
    ],
)
def test_relations_between_sizes(guard: InputGuard, holds: bool) -> None:
    assert relations_hold((guard,), ((8, 3), (8, 4))) is holds


def test_a_hostile_expression_is_refused() -> None:
    with pytest.raises(MalformedDocument):
        evaluate("__import__('os').getcwd()", ((1,),))
    with pytest.raises(MalformedDocument):
        evaluate("s[0][0] // (s[0][0] - 1)", ((1,),))


def test_symbols_that_nobody_named_are_tried_at_the_example_and_beside_it() -> None:
    artifact = an_artifact(
        coverage=Coverage(kind=CoverageKind.RANGE),
        inputs=(TensorMeta(path="args[0]", dtype="float32", shape=("s27", 4)),),
    )
    assert dimensions_of(artifact, {"s27": 6}) == (Dimension(name="s27", low=6, high=7),)


def test_points_read_like_sentences() -> None:
    assert describe_point({"batch": 1, "seq": 512}) == "batch 1, seq 512"
    assert describe_point({}) == "the example"


@given(
    st.lists(
        st.builds(
            lambda low, extra, step: Dimension(name="x", low=low, high=(low + extra) * step, multiple_of=step),
            st.integers(0, 50),
            st.integers(1, 400),
            st.integers(1, 16),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_point_lies_inside_every_range(drawn: list[Dimension]) -> None:
    dimensions = tuple(
        Dimension(name=f"d{i}", low=one.low, high=one.high, multiple_of=one.multiple_of) for i, one in enumerate(drawn)
    )
    found = points_of(dimensions, sizes_at=sizes_of)
    assert 1 <= len(found) <= MOST_POINTS
    for point in found:
        for one in dimensions:
            assert one.high is not None
            assert max(1, one.low) <= point[one.name] <= one.high
            assert point[one.name] % one.multiple_of == 0
