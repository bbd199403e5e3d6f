"""The route `function` at the build: what is refused by name, and how one call of a program is described."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.function.compile import compile_function, refuse_local_classes
from aot.compile.function.describe import describe_call
from aot.compile.function.make import FunctionMaker, split_ones
from aot.compile.function.trial import try_call
from aot.compile.job import CompileJob
from aot.compile.program import Example, Program
from aot.compile.shapes import Point, plan_points
from aot.errors import InvalidSpec, SourceNotExportable
from aot.schema.artifact import Coverage, CoverageKind
from aot.schema.recipe import Dimension, Recipe
from tests.builders import a_gpu_profile
from tests.integration import compiled as builds
from tests.integration import function_builds as functions

pytestmark = pytest.mark.torch


class Breaks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("once")
        return x + 1


class Draws(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4)


class Returns(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"x": x, "name": "text"}


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Scales(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: complex) -> torch.Tensor:
        return x * scale


def a_point(*args: Any, ranged: dict[str, Dimension] | None = None, sizes: Any = None) -> Point:
    coverage = Coverage(kind=CoverageKind.EXACT)
    return Point(coverage=coverage, example=Example(args), sizes=sizes or tuple({} for _ in args), ranged=ranged or {})


def test_a_graph_break_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SourceNotExportable, match="the program is not one graph") as raised:
        compile_function(Breaks(), a_point(torch.randn(4)), {}, into=tmp_path, tree=None)
    assert "routes" in raised.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_local_class_is_named_before_anything_is_compiled() -> None:
    class Local(torch.nn.Module):
        pass

    with pytest.raises(SourceNotExportable, match=r"inner is of the class .*<locals>\.Local"):
        refuse_local_classes(torch.nn.ModuleDict({"inner": Local()}))


def test_a_result_that_no_pod_could_rebuild_is_refused() -> None:
    point = a_point(torch.randn(4))
    seen = try_call(Returns(), point.example)
    with pytest.raises(SourceNotExportable, match=r"result\['name'\].* is a str"):
        describe_call(point, seen.result, parameters=("x",), written=frozenset())


def test_what_a_call_cannot_carry_is_named_as_forward_has_it(tmp_path: Path) -> None:
    with pytest.raises(SourceNotExportable, match=r"^scale is a complex; a call takes tensors"):
        a_maker(Scales(), functions.RECIPE, tmp_path, args=(torch.randn(4), 1j)).make()
    given = describe_call(
        a_point(torch.randn(4)), torch.randn(4), parameters=("x",), written=frozenset(), speak=str.upper
    )
    assert [leaf.path for leaf in given.call.inputs] == [meta.path for meta in given.inputs] == ["args[0]"]


def a_maker(
    module: torch.nn.Module, recipe: Recipe, tmp_path: Path, *, args: tuple[Any, ...] = (), **fields: Any
) -> FunctionMaker:
    from aot.compile.child import Progress

    job = CompileJob(
        recipe=recipe, out=str(tmp_path), build=str(tmp_path), **({"profile": builds.here(), "tree": "t"} | fields)
    )
    program = Program(module=module.eval(), examples=(Example(args or (torch.randn(4),)),))
    return FunctionMaker(job, program, isa="", progress=Progress(None))


def test_a_program_that_draws_random_numbers_is_refused_unless_it_may(tmp_path: Path) -> None:
    with pytest.raises(SourceNotExportable, match="draws random numbers"):
        a_maker(Draws(), functions.RECIPE, tmp_path).make()
    example = Example((torch.randn(4),))
    state = torch.random.get_rng_state()
    assert try_call(Draws(), example).draws
    assert not try_call(Adds(), example).draws
    assert torch.equal(state, torch.random.get_rng_state()), "looking leaves the generator where it was"


def test_other_devices_and_exported_programs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="built for CPUs by this version"):
        a_maker(Adds(), functions.RECIPE, tmp_path, profile=a_gpu_profile()).make()
    with pytest.raises(SourceNotExportable, match="has no module that Dynamo could trace"):
        a_maker(Adds(), functions.RECIPE, tmp_path, tree="").make()


def test_where_neither_route_takes_a_program_both_reasons_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aot.compile.child import Progress
    from aot.compile.function import instead

    (tmp_path / "artifacts" / "0").mkdir(parents=True)  # of a point that the package took before another failed
    program = Program(module=Adds().eval(), examples=(Example((torch.randn(4),)),))
    monkeypatch.setattr(instead, "open_job", lambda job: program)
    package = SourceNotExportable("it breaks", hint="mend it", details={"region": "", "frame": "model.py:3"})
    job = CompileJob(recipe=functions.RECIPE, out=str(tmp_path), build=str(tmp_path), profile=builds.here())
    with pytest.raises(SourceNotExportable, match="package: it breaks; function: an exported program") as raised:
        instead.make_instead(job, package, isa="", progress=Progress(None))
    assert raised.value.details["refused_routes"]["package"] == "it breaks (model.py:3)"
    assert raised.value.hint == "mend it" and not (tmp_path / "artifacts").exists()


def test_sizes_of_one_are_compiled_by_themselves() -> None:
    program = Program(
        module=Adds(),
        examples=(Example((torch.randn(4, 6),)),),
        dimensions=(Dimension(name="batch", low=1, high=8), Dimension(name="width", low=1, high=None)),
        dynamic_shapes={"x": {0: "batch", 1: "width"}},
    )
    [point] = plan_points(program, functions.RECIPE)
    pieces = list(split_ones(point))
    found = [[(one.low, one.high) for one in piece.coverage.dimensions] for piece in pieces]
    assert found == [[(1, 1), (1, 1)], [(1, 1), (2, None)], [(2, 8), (1, 1)], [(2, 8), (2, None)]]
    assert [tuple(piece.example.args[0].shape) for piece in pieces] == [(1, 1), (1, 6), (4, 1), (4, 6)]
    whole = list(split_ones(pieces[-1]))
    assert whole == [pieces[-1]]


def test_open_sizes_that_are_no_dimension_themselves_are_refused() -> None:
    program = Program(
        module=Adds(),
        examples=(Example((torch.randn(8, 6),)),),
        dimensions=(Dimension(name="batch", low=2, high=8),),
        dynamic_shapes={"x": {0: "2*batch"}},
    )
    [point] = plan_points(program, functions.RECIPE)
    seen = try_call(Adds(), point.example)
    with pytest.raises(SourceNotExportable, match=r"found 2\*batch"):
        describe_call(point, seen.result, parameters=("x",), written=seen.inputs)


def test_inputs_and_buffers_that_are_written_into_are_noted() -> None:
    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return y.add_(x)

    module, example = Writes(), Example((torch.ones(4), torch.ones(4)))
    seen = try_call(module, example)
    assert (seen.inputs, seen.tensors, seen.draws) == (frozenset({1}), frozenset({"count"}), False)
    assert module.count.item() == 0 and torch.equal(example.args[1], torch.ones(4))
    described = describe_call(a_point(*example.args), seen.result, parameters=("x", "y"), written=seen.inputs)
    assert [guard.input for guard in described.input_guards if guard.kind == "apart"] == [1]
