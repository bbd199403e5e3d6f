"""Exporting one point: open sizes, both ways of tracing, and how a failure is told."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.constants import wanted_constants
from aot.compile.export import Exported, export_point, sizes_from_one
from aot.compile.guards import describe
from aot.compile.program import Example, Program, open_factory
from aot.compile.shapes import plan_points
from aot.errors import SourceNotExportable, SourceNotLoadable
from aot.schema.guard import InputGuard
from aot.schema.recipe import Dimension, Recipe

PLAIN = Recipe()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, pair: Any = None) -> torch.Tensor:
        y = self.layer(x)
        return y if pair is None else y + pair["half"].repeat(2, 1)


def export_of(*args: Any, shapes: Any = None, recipe: Recipe = PLAIN, **dimensions: Dimension) -> Exported:
    program = Program(
        module=Net().eval(),
        examples=(Example(args, {}),),
        dimensions=tuple(dimensions.values()),
        dynamic_shapes=shapes,
    )
    (point,) = plan_points(program, recipe)
    return export_point(program.module, point, region="", tree=None)


def ranges(exported: Exported) -> dict[str, tuple[int, int]]:
    found = exported.program.range_constraints.items()
    return {exported.symbols.get(str(symbol), "?"): (int(one.lower), int(one.upper)) for symbol, one in found}


def test_a_named_dimension_becomes_a_symbol_with_its_range() -> None:
    exported = export_of(torch.ones(3, 4), shapes={"x": {0: "b"}}, b=Dimension(name="b", low=2, high=9))
    assert ranges(exported) == {"b": (2, 9)}


def test_a_multiple_counts_its_steps() -> None:
    batch = Dimension(name="b", low=8, high=64, multiple_of=8)
    exported = export_of(torch.ones(16, 4), shapes={"x": {0: "b"}}, b=batch)
    assert list(exported.symbols.values()) == ["b/8"]
    assert ranges(exported)["b/8"] == (2, 8)  # torch takes the first step for a constant


def test_a_size_derived_from_another_stays_tied_to_it() -> None:
    exported = export_of(
        torch.ones(6, 4),
        {"half": torch.ones(3, 4)},
        shapes={"x": {0: "2*b"}, "pair": {"half": {0: "b"}}},
        b=Dimension(name="b", low=2, high=9),
    )
    assert ranges(exported)["b"] == (2, 9)
    assert len([name for name in exported.symbols.values() if name == "b"]) == 1


def test_without_names_everything_is_fixed() -> None:
    assert export_of(torch.ones(3, 4)).program.range_constraints == {}


def test_dynamic_true_opens_every_size_that_the_program_allows() -> None:
    exported = export_of(torch.ones(3, 4), recipe=Recipe(dynamic=True))
    (input_value,) = [
        node.meta["val"] for node in exported.program.graph.nodes if node.op == "placeholder" and node.name == "x"
    ]
    assert not isinstance(input_value.shape[0], int)
    assert input_value.shape[1] == 4


def test_only_a_program_that_reads_a_buffer_is_traced_again_to_see_what_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("unused", torch.zeros(()))
            self.counts = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + (self.calls.add_(1) if self.counts else 0)

    traced: list[object] = []
    again = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram, "run_decompositions", lambda self, table: traced.append(1) or again(self, table)
    )
    module = Counting().eval()
    for module.counts, found, times in ((False, set(), 0), (True, {"calls"}, 1)):
        (point,) = plan_points(Program(module=module, examples=(Example((torch.ones(2, 4),), {}),)), PLAIN)
        assert export_point(module, point, region="", tree=None).mutated == found
        assert len(traced) == times


def test_sizes_from_one_are_kept_open_where_asked() -> None:
    from torch.fx.experimental import _config

    with sizes_from_one():
        assert _config.backed_size_oblivious is True
    assert _config.backed_size_oblivious is False


def test_flops_and_nodes_are_counted() -> None:
    exported = export_of(torch.ones(3, 4))
    assert exported.flops == 2 * 3 * 4 * 4
    assert exported.nodes >= 4
    assert exported.strict is False


def a_source(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    name = "model_" + "".join(letter for letter in tmp_path.name if letter.isalnum())
    lines = (
        "import torch",
        "class Net(torch.nn.Module):",
        "    def forward(self, x):",
        f"        {body}",
        "def make():",
        "    return Net(), (torch.ones(3, 4),)",
    )
    (tmp_path / f"{name}.py").write_text("\n".join(lines))
    return open_factory(tmp_path, f"{name}:make")


def test_a_program_that_does_not_export_is_told_with_operation_line_and_both_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = a_source(tmp_path, "return x * 2 if x.sum().item() > 0 else x", monkeypatch)
    (point,) = plan_points(program, Recipe())
    with pytest.raises(SourceNotExportable) as caught:
        export_point(program.module, point, region="Block", tree=tmp_path)
    details = caught.value.details
    assert details["region"] == "Block"
    assert details["source"]["line"] == 4
    assert details["source"]["text"].startswith("return x * 2 if")
    assert details["non_strict"]
    assert details["strict"]
    assert details["non_strict"] != details["strict"]
    assert f"{details['source']['file']}:4" in caught.value.message


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ("return x * 2 if x.sum().item() > 0 else x", "a branch or size that depends on data (zuf0 > 0.0)"),
        ("return x + len(str(x.data_ptr()))", ""),
        ("return torch.ops.mine.no_fake(x)", "mine.no_fake.default"),
    ],
)
def test_an_operation_is_named_where_the_error_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, operation: str
) -> None:
    library = torch.library.Library("mine", "FRAGMENT")
    library.define("no_fake(Tensor x) -> Tensor")
    library.impl("no_fake", lambda x: x.clone(), "CPU")
    program = a_source(tmp_path, body, monkeypatch)
    (point,) = plan_points(program, Recipe())
    with pytest.raises(SourceNotExportable) as caught:
        export_point(program.module, point, region="", tree=tmp_path)
    assert caught.value.details["operation"] == operation
    library._destroy()


def test_a_module_that_does_not_run_on_its_example_is_the_sources_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = a_source(tmp_path, "return x @ x", monkeypatch)
    (point,) = plan_points(program, Recipe())
    with pytest.raises(SourceNotLoadable, match="does not run on its example inputs") as caught:
        export_point(program.module, point, region="", tree=tmp_path)
    assert caught.value.details["frame"]["line"] == 4


class PlainTensorsOnly(torch.nn.Module):
    """Refuses what is not exactly a tensor, as libraries with kernels of their own do.

    Non-strict export runs it on fake tensors, which are of another type; Dynamo answers as eager would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            raise TypeError(f"wanted a plain tensor, found {type(x).__name__}")
        return self.layer(x).relu()


def test_a_program_that_exports_only_strictly_is_exported_strictly_with_the_same_guards() -> None:
    def exported_from(module: torch.nn.Module) -> Exported:
        program = Program(
            module=module.eval().requires_grad_(False),
            examples=(Example((torch.ones(3, 4),), {}),),
            dimensions=(Dimension(name="b", low=2, high=9),),
            dynamic_shapes={"x": {0: "b"}},
        )
        (point,) = plan_points(program, PLAIN)
        return export_point(program.module, point, region="", tree=None)

    with pytest.raises(TypeError, match="found FakeTensor"):
        torch.export.export(PlainTensorsOnly().eval(), (torch.ones(3, 4),), strict=False)
    module, forgiving = PlainTensorsOnly(), torch.nn.Sequential()
    forgiving.layer, forgiving.relu = module.layer, torch.nn.ReLU()
    strict, other = exported_from(module), exported_from(Renamed(forgiving))
    assert (strict.strict, other.strict) == (True, False)
    assert ranges(strict) == ranges(other) == {"b": (2, 9)}
    assert guards_of(strict) == guards_of(other) != ()
    assert sorted(wanted_constants(strict, module)) == ["layer.bias", "layer.weight"]
    x = torch.randn(7, 4)
    assert torch.equal(strict.program.module()(x), module(x))


class Renamed(torch.nn.Module):
    """The same call without the refusal."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def guards_of(exported: Exported) -> tuple[InputGuard, ...]:
    return describe(exported.program, dimension_names=exported.symbols, parameters=("x",)).input_guards
