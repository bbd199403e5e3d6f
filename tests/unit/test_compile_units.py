"""What a compile works on: the whole program, or its repeated blocks as a call at that point reaches them."""

from typing import Any

import pytest
import torch
from torch import nn

from aot.compile.cover import left_over
from aot.compile.dimensions import Size
from aot.compile.export import export_point
from aot.compile.program import Example, Program
from aot.compile.shapes import other_sizes, plan_points
from aot.compile.units import UnitPlanner
from aot.errors import InvalidSpec, SourceNotLoadable
from aot.schema.recipe import Dimension, Recipe, Regions


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, **extra: Any) -> torch.Tensor:
        return x + self.up(self.norm(x)) * extra["scale"]


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(depth))
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        flat = torch.ones(x.shape[0] * x.shape[1])
        for block in self.blocks:
            x = block(x, scale=flat.reshape(x.shape[0], x.shape[1], 1))
        return self.head(x)


def a_program(module: nn.Module | None = None, *dimensions: Dimension) -> Program:
    return Program(
        module=(module or Stack()).eval(),
        examples=(Example((torch.arange(12).reshape(3, 4),), {}),),
        dimensions=dimensions or (Dimension(name="batch", high=16), Dimension(name="seq", low=2, high=64)),
        dynamic_shapes={"ids": {0: "batch", 1: "seq"}},
    )


def plan(program: Program, regions: Regions = Regions.AUTO) -> UnitPlanner:
    return UnitPlanner(program, regions, tree=None)


def test_the_whole_program_is_one_unit() -> None:
    program = a_program()
    (point,) = plan_points(program, Recipe())
    (unit,) = plan(program, Regions.WHOLE).units_at(point)
    assert (unit.region, unit.instances, unit.module) == ("", ("",), program.module)
    assert unit.point is unit.whole is point


def test_repeated_blocks_are_one_unit_with_the_sizes_of_its_calls() -> None:
    program = a_program()
    (point,) = plan_points(program, Recipe())
    (unit,) = plan(program).units_at(point)
    assert (unit.region, unit.instances) == ("Block", ("blocks.0", "blocks.1", "blocks.2"))
    assert unit.module is program.module.blocks[0]
    assert unit.point.sizes == ({0: Size("batch"), 1: Size("seq")}, {0: Size("batch"), 1: Size("seq")})
    assert unit.point.example.args[0].shape == (3, 4, 8)
    assert unit.point.coverage == point.coverage


def test_the_program_is_run_once_at_each_of_two_points_to_find_its_regions() -> None:
    program, runs = a_program(), []
    (point,) = plan_points(program, Recipe())
    planner = plan(program)
    program.module.forward = lambda ids: runs.append(tuple(ids.shape)) or Stack.forward(program.module, ids)
    planner.units_at(point)
    assert len(runs) == 2 and runs[0] == (3, 4) and runs[0] != runs[1]


def test_a_block_that_takes_keywords_of_no_name_is_exported_with_open_sizes() -> None:
    program = a_program()
    (point,) = plan_points(program, Recipe())
    (unit,) = plan(program).units_at(point)
    exported = export_point(unit.module, unit.point, region=unit.region, tree=None)
    assert sorted(exported.symbols.values()) == ["batch", "seq"]


def test_a_size_of_no_dimension_alone_is_left_to_torch() -> None:
    class Flat(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids).reshape(-1, 8)
            for block in self.blocks:
                x = block(x, scale=1.0)
            return self.head(x)

    program = a_program(Flat())
    (point,) = plan_points(program, Recipe())
    (unit,) = plan(program).units_at(point)
    assert unit.point.sizes == ({0: Size("*")}, {})
    exported = export_point(unit.module, unit.point, region=unit.region, tree=None)
    assert len(exported.program.range_constraints) == 1


def test_a_piece_that_is_left_over_is_captured_anew() -> None:
    program = a_program()
    (point,) = plan_points(program, Recipe())
    planner = plan(program)
    (piece,) = left_over(point, {"batch": (1, 7), "seq": (2, 64)})
    (unit,) = planner.units_at(piece, instances=("blocks.2",), pieces=1)
    assert unit.point.example.args[0].shape[0] == 8
    assert (unit.whole, unit.pieces) == (piece, 1)
    assert planner.units_at(piece, instances=("elsewhere",)) == ()


def test_without_repeated_blocks_the_program_is_compiled_whole_and_that_is_noted() -> None:
    program = a_program(Stack(depth=1))
    (point,) = plan_points(program, Recipe())
    planner = plan(program)
    assert [unit.region for unit in planner.units_at(point)] == [""]
    assert any("no block repeats" in note for note in planner.notes)


def test_a_block_with_a_hook_runs_as_it_is_and_that_is_noted() -> None:
    program = a_program()
    for block in program.module.blocks:
        block.register_forward_hook(lambda *call: None)
    planner = plan(program)
    assert any("blocks.0, blocks.1, blocks.2 runs as it is: a forward hook" in note for note in planner.notes)


def test_a_program_that_does_not_run_at_another_size_of_its_range_is_told() -> None:
    class Fixed(Stack):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) + torch.ones(3, 1, 1) + torch.ones(1, 4, 1)

    program = a_program(Fixed())
    (point,) = plan_points(program, Recipe())
    with pytest.raises(SourceNotLoadable, match="does not run on its example inputs"):
        plan(program).units_at(point)


def test_frozen_regions_are_refused() -> None:
    from aot.recipes import check_recipe

    with pytest.raises(InvalidSpec, match="one block's weights into the code of all"):
        check_recipe(Recipe(freeze=True, regions=Regions.AUTO))


@pytest.mark.parametrize(
    ("dimensions", "at", "other"),
    [
        ({"b": (1, 8, 1)}, {"b": 4}, {"b": 5}),
        ({"b": (1, 8, 1), "s": (1, 8, 1)}, {"b": 4, "s": 5}, {"b": 6, "s": 7}),
        ({"b": (1, 4, 1)}, {"b": 4}, {"b": 3}),
        ({"b": (8, 64, 8)}, {"b": 16}, {"b": 24}),
        ({"b": (4, 5, 1), "s": (4, 5, 1)}, {"b": 4, "s": 4}, {"b": 5, "s": 5}),
        ({}, {"b": 4}, {}),
    ],
)
def test_another_size_is_unlike_all_others_where_the_ranges_allow(dimensions: Any, at: Any, other: Any) -> None:
    ranged = {
        name: Dimension(name=name, low=low, high=high, multiple_of=step)
        for name, (low, high, step) in dimensions.items()
    }
    assert other_sizes(ranged, at) == other
