"""What a compiled program answers for, and the points that make up for the rest."""

import torch

from aot.compile.cover import answered_ranges, left_over, narrow
from aot.compile.guards import Described
from aot.compile.program import Example, Program
from aot.compile.shapes import Point, plan_points
from aot.schema.artifact import CallSpec, Leaf, LeafKind
from aot.schema.guard import InputGuard
from aot.schema.recipe import Dimension, Recipe


class Net(torch.nn.Module):
    def forward(self, flag: bool, x: torch.Tensor) -> torch.Tensor:
        return x


def a_point(*dimensions: Dimension) -> Point:
    program = Program(
        module=Net(),
        examples=(Example((True, torch.ones(8, 16)), {}),),
        dimensions=dimensions,
        dynamic_shapes={"x": {0: dimensions[0].name, 1: f"2*{dimensions[1].name}"}},
    )
    (point,) = plan_points(program, Recipe())
    return point


def described(*guards: InputGuard) -> Described:
    leaves = (Leaf(kind=LeafKind.CONSTANT, constant=True), Leaf(kind=LeafKind.TENSOR))
    call = CallSpec(in_spec="", out_spec="", inputs=leaves, outputs=())
    return Described(inputs=(), outputs=(), input_guards=guards, call=call)


BATCH, SEQ = Dimension(name="batch", low=1, high=32), Dimension(name="seq", low=2, high=64)


def test_without_narrower_guards_everything_is_answered() -> None:
    point = a_point(BATCH, SEQ)
    ranges = answered_ranges(point, described())
    assert ranges == {"batch": (1, 32), "seq": (2, 64)}
    assert narrow(point, ranges) == point
    assert list(left_over(point, ranges)) == []


def test_a_narrower_guard_is_read_through_the_size_it_stands_on() -> None:
    guards = (
        InputGuard(kind="range", input=0, dim=0, low=1, high=15),
        InputGuard(kind="range", input=0, dim=1, low=17, high=128),
    )
    assert answered_ranges(a_point(BATCH, SEQ), described(*guards)) == {"batch": (1, 15), "seq": (9, 64)}


def test_what_is_left_over_is_disjoint_and_complete() -> None:
    point = a_point(BATCH, SEQ)
    ranges = {"batch": (2, 15), "seq": (2, 20)}
    boxes = [one.coverage.dimensions for one in left_over(point, ranges)]
    boxes.append(narrow(point, ranges).coverage.dimensions)
    for batch in range(1, 33):
        for seq in range(2, 65):
            inside = [
                all(one.low <= at <= (one.high or at) for one, at in zip(box, (batch, seq), strict=True))
                for box in boxes
            ]
            assert sum(inside) == 1, (batch, seq)


def test_a_left_over_piece_has_an_example_of_its_own() -> None:
    above, below = sorted(
        left_over(a_point(BATCH, SEQ), {"batch": (2, 15), "seq": (2, 64)}), key=lambda one: -len(one.ranged)
    )
    assert above.label == "batch=16..32, seq=2..64"
    assert above.example.args[1].shape == (16, 16)
    assert below.label == "batch=1, seq=2..64"
    assert below.example.args[1].shape == (1, 16)


def test_an_open_range_leaves_an_open_piece() -> None:
    point = a_point(Dimension(name="batch"), SEQ)
    (piece,) = left_over(point, {"batch": (1, 7), "seq": (2, 64)})
    assert piece.label == "batch=8.., seq=2..64"


def test_a_piece_without_a_multiple_is_no_piece() -> None:
    point = a_point(Dimension(name="batch", low=8, high=64, multiple_of=8), SEQ)
    assert [one.label for one in left_over(point, {"batch": (8, 63), "seq": (2, 64)})] == ["batch=64, seq=2..64"]
    assert list(left_over(point, {"batch": (5, 66), "seq": (2, 64)})) == []


def test_a_condition_between_dimensions_is_part_of_the_coverage() -> None:
    point = a_point(BATCH, SEQ)
    narrowed = narrow(point, answered_ranges(point, described()), constraints=("args[1].size(0) % 4 == 0",))
    assert narrowed.coverage.constraints == ("args[1].size(0) % 4 == 0",)
    assert narrowed.coverage.dimensions == point.coverage.dimensions
