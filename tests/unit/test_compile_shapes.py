"""Where dimensions sit in a program's inputs, examples of other sizes, and the points of a coverage."""

from typing import Any

import pytest
import torch

from aot.compile.dimensions import Size
from aot.compile.program import Example, Program
from aot.compile.shapes import locate, measure, plan_points, resize
from aot.errors import InvalidSpec, SourceNotLoadable
from aot.schema.artifact import CoverageKind
from aot.schema.recipe import Dimension, Recipe

IDS = torch.arange(12).reshape(3, 4)


class Net(torch.nn.Module):
    def forward(self, ids: Any, mask: Any = None, *, extra: Any = None) -> Any:
        return ids


def a_program(*args: Any, shapes: Any = None, dimensions: tuple[Dimension, ...] = (), **kwargs: Any) -> Program:
    return Program(module=Net(), examples=(Example(args, kwargs),), dimensions=dimensions, dynamic_shapes=shapes)


@pytest.mark.parametrize(
    ("shapes", "args", "kwargs", "found"),
    [
        ({"ids": {0: "b", 1: "s"}}, (IDS,), {}, ({0: Size("b"), 1: Size("s")},)),
        ({"ids": ("b", None)}, (IDS,), {}, ({0: Size("b")},)),
        (({0: "b"}, None), (IDS, None), {}, ({0: Size("b")}, {})),
        ({"ids": {-1: "s"}}, (IDS,), {}, ({1: Size("s")},)),
        ({"mask": {0: "2*b"}}, (IDS,), {"mask": IDS.clone()}, ({}, {0: Size("b", 2)})),
        ({"ids": [{0: "b"}, None]}, ([IDS, 3],), {}, ({0: Size("b")}, {})),
        ({"ids": {"x": {0: "b"}}}, ({"x": IDS, "y": IDS.clone()},), {}, ({0: Size("b")}, {})),
        ({"ids": None, "extra": ({0: "b"}, {1: "s"})}, (7,), {"extra": (IDS, IDS.clone())},
         ({}, {0: Size("b")}, {1: Size("s")})),
        ({"mask": {0: "b"}}, (IDS,), {}, ({},)),
        (None, (IDS,), {}, ({},)),
    ],
)  # fmt: skip
def test_dimensions_are_found_by_name_position_and_structure(shapes: Any, args: Any, kwargs: Any, found: Any) -> None:
    assert locate(a_program(*args, shapes=shapes, **kwargs), 0) == found


def test_a_name_that_forward_does_not_take_is_told_with_those_that_it_takes() -> None:
    with pytest.raises(SourceNotLoadable, match=r"names 'idz', and Net\.forward takes ids, mask, extra"):
        locate(a_program(IDS, shapes={"idz": {0: "b"}}), 0)


@pytest.mark.parametrize(
    "shapes",
    [
        {"ids": {2: "b"}},
        {"ids": {0: "b c"}},
        {"ids": {0: 4}},
        {"ids": "b"},
        {"ids": [{0: "b"}, None, None]},
        ({0: "b"}, {0: "b"}),
    ],
)
def test_dynamic_shapes_that_do_not_fit_are_told(shapes: Any) -> None:
    with pytest.raises(SourceNotLoadable):
        locate(a_program(IDS, shapes=shapes), 0)


def test_a_key_that_the_example_lacks_is_told() -> None:
    with pytest.raises(SourceNotLoadable, match="'z'"):
        locate(a_program({"x": IDS}, shapes={"ids": {"z": {0: "b"}}}), 0)


def test_an_example_that_does_not_fit_forward_is_told() -> None:
    with pytest.raises(SourceNotLoadable, match=r"does not fit Net\.forward"):
        locate(a_program(IDS, IDS, IDS, shapes={"ids": {0: "b"}}), 0)


def test_two_inputs_that_disagree_are_told() -> None:
    program = a_program(IDS, IDS[:2].clone(), shapes={"ids": {0: "b"}, "mask": {0: "b"}})
    with pytest.raises(SourceNotLoadable, match="b=3"):
        measure(program.examples[0], locate(program, 0))


def test_growing_repeats_values_and_shrinking_cuts_them() -> None:
    example = Example((IDS, "text"), {"scale": torch.ones(6)})
    sizes = ({0: Size("b"), 1: Size("s")}, {}, {0: Size("b", 2)})
    resized = resize(example, sizes, {"b": 5, "s": 2})
    assert torch.equal(resized.args[0], IDS[[0, 1, 2, 0, 1], :2])
    assert resized.args[1] == "text"
    assert resized.kwargs["scale"].shape == (10,)


def test_every_tensor_of_a_resized_example_is_its_own() -> None:
    example = Example((IDS, IDS), {})
    first, second = resize(example, ({}, {}), {}).args
    assert len({first.data_ptr(), second.data_ptr(), IDS.data_ptr()}) == 3


def test_a_tensor_that_keeps_its_size_keeps_its_strides() -> None:
    example = Example((IDS.t(),), {})
    assert resize(example, ({},), {}).args[0].stride() == IDS.t().stride()


def test_a_tensor_that_changes_its_size_keeps_the_order_of_its_dimensions() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for batch in (1, 2, 7):
        resized = resize(Example((image,), {}), ({0: Size("b")},), {"b": batch}).args[0]
        assert resized.stride()[1:] == (1, 15, 3)
        assert torch.equal(resized, image[[index % 2 for index in range(batch)]])


BOTH = {"ids": {0: "batch", 1: "seq"}}


def points_of(recipe: Recipe, *dimensions: Dimension) -> list[tuple[CoverageKind, str, tuple[int, ...]]]:
    planned = plan_points(a_program(IDS, shapes=BOTH, dimensions=dimensions), recipe)
    return [(point.coverage.kind, point.label, tuple(point.example.args[0].shape)) for point in planned]


def test_undeclared_dimensions_are_open_ranges() -> None:
    assert points_of(Recipe()) == [(CoverageKind.RANGE, "batch=1.., seq=1..", (3, 4))]


def test_a_program_without_names_is_exact() -> None:
    (point,) = plan_points(a_program(IDS), Recipe())
    assert (point.coverage.kind, point.label) == (CoverageKind.EXACT, "exact")


def test_dynamic_false_fixes_every_size_at_the_examples() -> None:
    assert points_of(Recipe(dynamic=False)) == [(CoverageKind.EXACT, "batch=3, seq=4", (3, 4))]


def test_buckets_are_compiled_one_by_one_beside_an_open_range() -> None:
    assert points_of(Recipe(), Dimension(name="batch", buckets=(8, 1)), Dimension(name="seq", high=64)) == [
        (CoverageKind.BUCKET, "batch=1, seq=1..64", (1, 4)),
        (CoverageKind.BUCKET, "batch=8, seq=1..64", (8, 4)),
    ]


def test_an_example_outside_the_range_is_moved_into_it() -> None:
    assert points_of(Recipe(), Dimension(name="batch", low=16, high=64, multiple_of=16)) == [
        (CoverageKind.RANGE, "batch=16..64 by 16, seq=1..", (32, 4))
    ]


def test_a_range_of_one_size_is_compiled_for_exactly_that() -> None:
    assert points_of(Recipe(), Dimension(name="batch", low=2, high=2), Dimension(name="seq", low=4, high=4)) == [
        (CoverageKind.EXACT, "batch=2, seq=4", (2, 4))
    ]


def test_each_example_is_a_coverage_of_its_own() -> None:
    program = Program(
        module=Net(),
        examples=(Example((IDS,), {}), Example((IDS, IDS.clone()), {})),
        dynamic_shapes={"ids": {0: "batch"}, "mask": {0: "batch"}},
    )
    points = plan_points(program, Recipe(dimensions=(Dimension(name="batch", high=8),)))
    assert [point.label for point in points] == ["batch=1..8", "batch=1..8 (example 1)"]
    assert [point.coverage.example for point in points] == [0, 1]


def test_a_recipe_names_only_what_the_source_has() -> None:
    with pytest.raises(InvalidSpec, match="the source has batch, seq"):
        points_of(Recipe(dimensions=(Dimension(name="heads"),)))


@pytest.mark.parametrize(
    ("dimension", "from_one"),
    [
        (Dimension(name="batch", low=1, high=8), True),
        (Dimension(name="batch", low=2, high=8), False),
        (Dimension(name="batch", low=8, high=64, multiple_of=8), True),
        (Dimension(name="batch", low=16, high=64, multiple_of=8), False),
    ],
)
def test_sizes_that_torch_takes_for_constants_are_seen(dimension: Dimension, from_one: bool) -> None:
    seq = Dimension(name="seq", low=2)
    (point,) = plan_points(a_program(IDS, shapes=BOTH, dimensions=(dimension, seq)), Recipe())
    assert point.from_one is from_one
