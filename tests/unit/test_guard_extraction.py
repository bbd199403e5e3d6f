"""From a real export to guards, tensor forms and calling convention; and what is refused on the way."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx.experimental._config as tracing
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from aot.compile.artifacts import ArtifactMaker
from aot.compile.child import Progress
from aot.compile.guards import Described, Narrowing, describe
from aot.compile.job import CompileJob
from aot.compile.program import Example, Program, forward_speaker
from aot.errors import SourceNotExportable
from aot.runtime.guards import Check, compile_check
from aot.schema.artifact import Leaf, LeafKind, TensorMeta
from aot.schema.guard import InputGuard
from aot.schema.recipe import Recipe
from tests.builders import a_profile

rand = torch.rand


class Wrapped(nn.Module):
    """A function of two inputs as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def an_export(
    function: Callable[..., Any], args: tuple[Any, ...], shapes: Any, *, oblivious: bool = True
) -> ExportedProgram:
    with tracing.patch(backed_size_oblivious=oblivious):
        return export(Wrapped(function).eval(), args, dynamic_shapes=shapes, strict=False)


def saved_and_loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def a_check(described: Described) -> Check:
    return compile_check(described.input_guards, described.inputs)


def sizes_of(described: Described) -> list[InputGuard]:
    """The guards that say something of sizes."""
    silent = ("dtype", "device", "rank", "stride", "no-grad", "no-autocast")
    return [guard for guard in described.input_guards if guard.kind not in silent]


def batch(high: int | None = 32) -> Any:
    return Dim("batch", min=1, max=high)


def test_a_plain_export_gives_every_condition_in_order() -> None:
    dim = batch()
    program = an_export(lambda x, y: x + y, (rand(4, 3), rand(4, 3)), ({0: dim}, {0: dim}))
    (symbol,) = program.range_constraints
    described = describe(program, dimension_names={str(symbol): "batch"}, parameters=("x", "y"))
    assert described.input_guards == (
        InputGuard(kind="dtype", input=0, value="float32"),
        InputGuard(kind="device", input=0, value="cpu"),
        InputGuard(kind="rank", input=0, low=2),
        InputGuard(kind="range", input=0, dim=0, low=1, high=32),
        InputGuard(kind="size", input=0, dim=1, low=3),
        InputGuard(kind="stride", input=0, strides=(3, 1)),
        InputGuard(kind="dtype", input=1, value="float32"),
        InputGuard(kind="device", input=1, value="cpu"),
        InputGuard(kind="rank", input=1, low=2),
        InputGuard(kind="equal", input=1, dim=0, other=(0, 0)),
        InputGuard(kind="size", input=1, dim=1, low=3),
        InputGuard(kind="stride", input=1, strides=(3, 1)),
        InputGuard(kind="no-autocast"),
        InputGuard(kind="no-grad"),
    )
    assert described.inputs == (
        TensorMeta(path="args[0]", dtype="float32", shape=("batch", 3), stride=(3, 1)),
        TensorMeta(path="args[1]", dtype="float32", shape=("batch", 3), stride=(3, 1)),
    )
    assert described.outputs == (TensorMeta(path="result", dtype="float32", shape=("batch", 3), stride=(3, 1)),)
    assert described.call.parameters == ("x", "y")
    assert described.narrowed == ()


@pytest.mark.parametrize("saved", [False, True])
def test_a_broadcast_mask_and_other_silent_errors_are_misses(saved: bool) -> None:
    dim, length = batch(), Dim("seq", max=64)
    program = an_export(
        lambda x, y: x * y[:, :, None], (rand(4, 6, 16), rand(4, 6)), ({0: dim, 1: length}, {0: dim, 1: length})
    )
    check = a_check(describe(saved_and_loaded(program) if saved else program, dimension_names={}))
    assert check([rand(5, 7, 16), rand(5, 7)]) is None
    assert "args[1]: size 1 in dimension 0" in (check([rand(5, 7, 16), rand(1, 7)]) or "")
    assert "args[0]: size 17 in dimension 2" in (check([rand(5, 7, 17), rand(5, 7)]) or "")
    assert "args[0]: size 33 in dimension 0" in (check([rand(33, 7, 16), rand(33, 7)]) or "")
    assert "args[1]: dtype int64" in (check([rand(5, 7, 16), torch.ones(5, 7, dtype=torch.int64)]) or "")
    assert "args[0]: strides" in (check([rand(7, 5, 16).transpose(0, 1), rand(5, 7)]) or "")


def test_symbolic_strides_are_expressions_over_sizes() -> None:
    free = {0: Dim.AUTO, 1: Dim.AUTO}
    program = an_export(
        lambda x, y: x + y, (rand(6, 4, 16).transpose(0, 1), rand(4, 6, 16)), (free, free), oblivious=False
    )
    described = describe(program, dimension_names={})
    strides = [guard.strides for guard in described.input_guards if guard.kind == "stride"]
    assert strides == [(16, "16 * s[0][0]", 1), ("16 * s[0][1]", 16, 1)]
    check = a_check(described)
    assert check([rand(9, 5, 16).transpose(0, 1), rand(5, 9, 16)]) is None
    assert check([rand(5, 9, 16), rand(5, 9, 16)]) is not None


def test_a_stride_that_no_size_determines_is_held_to_the_example() -> None:
    free = {0: Dim.AUTO, 1: Dim.AUTO}
    program = an_export(lambda x, y: x + y, (rand(4, 6, 20)[:, :, :16], rand(4, 6, 16)), (free, free), oblivious=False)
    check = a_check(describe(program, dimension_names={}))
    assert check([rand(3, 5, 20)[:, :, :16], rand(3, 5, 16)]) is None
    assert "args[0]: strides (120, 24, 1)" in (check([rand(3, 5, 24)[:, :, :16], rand(3, 5, 16)]) or "")


def test_expanded_inputs_keep_their_zero_strides() -> None:
    program = an_export(lambda x, y: x + y, (rand(1, 6).expand(4, 6), rand(4, 6)), ({0: batch()}, {0: batch()}))
    check = a_check(describe(program, dimension_names={}))
    assert check([rand(1, 6).expand(5, 6), rand(5, 6)]) is None
    assert check([rand(5, 6), rand(5, 6)]) is not None


@pytest.mark.parametrize("saved", [False, True])
def test_derived_dimensions(saved: bool) -> None:
    half = Dim("_half", min=2, max=16)
    program = an_export(lambda x, y: x[::2] + y, (rand(8, 3), rand(4, 3)), ({0: 2 * half}, {0: half}))
    described = describe(saved_and_loaded(program) if saved else program, dimension_names={})
    assert sizes_of(described)[:2] == [
        InputGuard(kind="range", input=0, dim=0, low=4, high=32),
        InputGuard(kind="expression", value="s[0][0] == 2 * s[1][0]"),
    ]
    check = a_check(described)
    assert check([rand(6, 3), rand(3, 3)]) is None
    assert "wanted args[0].size(0) == 2 * args[1].size(0), found 7, 3" in (check([rand(7, 3), rand(3, 3)]) or "")


def test_steps_of_a_dimension_become_divisibility() -> None:
    program = an_export(lambda x, y: x.sum() + y, (rand(16, 3), rand(3)), ({0: 8 * Dim("_b", min=1, max=4)}, None))
    symbol = next(str(key) for key in program.range_constraints if key.is_Symbol)
    described = describe(program, dimension_names={symbol: "batch/8"})
    assert sizes_of(described)[:2] == [
        InputGuard(kind="range", input=0, dim=0, low=16, high=32),
        InputGuard(kind="divisible", input=0, dim=0, low=8),
    ]
    assert described.inputs[0].shape == ("batch", 3)
    # torch assumes the number of steps to be at least 2, whatever was declared.
    assert described.narrowed[0].text == "batch (dimension 0 of args[0]): declared 8..32, compiled for 16..32"


def test_odd_sizes_only() -> None:
    program = an_export(lambda x, y: x.sum() + y, (rand(9, 3), rand(3)), ({0: 2 * Dim("_b", min=2, max=16) + 1}, None))
    check = a_check(describe(program, dimension_names={}))
    assert check([rand(7, 3), rand(3)]) is None
    assert "found 8" in (check([rand(8, 3), rand(3)]) or "")
    assert "wanted 5 to 33" in (check([rand(35, 3), rand(3)]) or "")


@pytest.mark.parametrize("saved", [False, True])
def test_what_the_trace_decided_is_guarded(saved: bool) -> None:
    program = an_export(
        lambda x, y: x.view(x.shape[0], 2, -1).sum(1) if x.shape[1] != 10 else x,
        (rand(6, 4), rand(3)),
        ({0: batch(), 1: Dim.AUTO}, None),
        oblivious=False,
    )
    described = describe(saved_and_loaded(program) if saved else program, dimension_names={})
    check = a_check(described)
    assert InputGuard(kind="divisible", input=0, dim=1, low=2) in described.input_guards
    assert check([rand(6, 12), rand(3)]) is None
    assert "wanted a multiple of 2" in "".join(check([rand(6, size), rand(3)]) or "" for size in (5, 7))
    assert "!= 10" in (check([rand(6, 10), rand(3)]) or "")
    assert any("args[0].size(1)" in narrowing.text for narrowing in described.narrowed)


def test_a_decision_on_size_one_leaves_no_guard_so_one_is_not_covered() -> None:
    program = an_export(
        lambda x, y: x + 1 if x.shape[0] == 1 else x * y, (rand(4, 3), rand(3)), ({0: batch()}, None), oblivious=False
    )
    assert all(values.lower == 1 for values in program.range_constraints.values())  # what torch declares
    for one in (program, saved_and_loaded(program)):
        described = describe(one, dimension_names={})
        assert "wanted 2 to 32" in (a_check(described)([rand(1, 3), rand(3)]) or "")
        assert [(found.low, found.high) for found in described.narrowed] == [(2, 32)]
        declared = describe(one, dimension_names={}, declared_lows=True)
        assert a_check(declared)([rand(1, 3), rand(3)]) is None


def test_a_size_of_one_is_covered_where_the_trace_allowed_for_it() -> None:
    program = an_export(lambda x, y: x * y, (rand(4, 3), rand(3)), ({0: batch()}, None))
    described = describe(program, dimension_names={})
    assert (a_check(described)([rand(1, 3), rand(3)]), described.narrowed) == (None, ())


@pytest.mark.torch
def test_what_lowering_assumes_is_guarded_when_described_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    program = an_export(lambda x, y: torch.cat([x, x], 1).softmax(-1), (rand(4, 9, 8), rand(3)), ({0: batch()}, None))
    symbol = next(str(key) for key in program.range_constraints if key.is_Symbol)
    assert a_check(describe(program, dimension_names={}))([rand(1, 9, 8), rand(3)]) is None
    # Lowered without the patch that it was exported under, Inductor takes the batch to be other than 1. No C++ here.
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "p.pt2"), inductor_configs={"aot_inductor.package_cpp_only": True}
    )
    described = describe(program, dimension_names={symbol: "batch"})
    assert a_check(described)([rand(1, 9, 8), rand(3)]) is not None
    text = "batch (dimension 0 of args[0]): declared 1..32, compiled for 2..32"
    assert described.narrowed == (Narrowing(text=text, dimension="batch", low=2, high=32),)


def test_written_inputs_must_not_share_memory() -> None:
    program = an_export(lambda x, y: x.add_(1) + y, (rand(4, 3), rand(4, 3)), ({0: batch()}, {0: batch()}))
    described = describe(program, dimension_names={})
    assert InputGuard(kind="apart", input=0) in described.input_guards
    shared = rand(4, 3)
    assert "shares memory" in (a_check(described)([shared, shared]) or "")


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():  # a graph of its own inside the program's
        return x.add_(1)


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x, y: x.clone().add_(1) + y, []),
        (lambda x, y: (x + y).mul_(2), []),
        (lambda x, y: x[:2].t().add_(1) + y.sum(), [0]),
        (lambda x, y: x.view(-1).split(4)[1].zero_() + y.sum(), [0]),
        (lambda x, y: y.index_copy_(0, torch.tensor([1]), x[:1]) + x, [1]),
        (lambda x, y: torch.add(x, 1, out=y), [1]),
        (lambda x, y: (x.add_(1), y.unbind(0)[1].mul_(2)), [0, 1]),
        (lambda x, y: torch._foreach_add_([x, y], 1.0) or x + y, [0, 1]),
        (lambda x, y: without_gradients(x) + y, [0]),
        (lambda x, y: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a + 1, (y,)) + x, []),
    ],
)
def test_writes_are_followed_to_their_inputs(function: Callable[..., Any], written: list[int]) -> None:
    described = describe(an_export(function, (rand(4, 3), rand(4, 3)), None), dimension_names={})
    assert [guard.input for guard in described.input_guards if guard.kind == "apart"] == written


class Varied(nn.Module):
    """Arguments and results of every kind that can be carried."""

    def forward(
        self,
        x: Tensor,
        flag: bool = True,
        scale: float = 2.5,
        *,
        mode: str = "a",
        more: Mapping[str, Any] | None = None,
    ) -> Any:
        assert more is not None
        y = x * scale + more["b"][0] if flag else x
        return {"y": y, "size": x.shape[0], "fixed": 3, "nothing": None, "rest": (x.shape[0] * 2, [y.sum()])}


def test_every_leaf_of_the_call_is_recorded() -> None:
    program = export(
        Varied(),
        (rand(4, 3), True),
        {"mode": "a", "more": {"b": (rand(3), None), "a": 7}},
        dynamic_shapes={
            "x": {0: batch()},
            "flag": None,
            "mode": None,
            "more": {"b": (None, None), "a": None},
        },
        strict=False,
    )
    described = describe(program, dimension_names={str(next(iter(program.range_constraints))): "batch"})
    assert described.call.inputs == (
        Leaf(kind=LeafKind.TENSOR, path="args[0]"),
        Leaf(kind=LeafKind.CONSTANT, path="args[1]", constant=True, constant_type="bool"),
        Leaf(kind=LeafKind.CONSTANT, path="kwargs['mode']", constant="a", constant_type="str"),
        Leaf(kind=LeafKind.TENSOR, path="kwargs['more']['b'][0]"),
        Leaf(kind=LeafKind.NONE, path="kwargs['more']['b'][1]"),
        Leaf(kind=LeafKind.CONSTANT, path="kwargs['more']['a']", constant=7, constant_type="int"),
    )
    assert described.call.outputs == (
        Leaf(kind=LeafKind.TENSOR, path="result['y']"),
        Leaf(kind=LeafKind.INTEGER, path="result['size']", constant_type="int"),
        Leaf(kind=LeafKind.INTEGER, path="result['fixed']", constant_type="int"),
        Leaf(kind=LeafKind.NONE, path="result['nothing']"),
        Leaf(kind=LeafKind.INTEGER, path="result['rest'][0]", constant_type="int"),
        Leaf(kind=LeafKind.TENSOR, path="result['rest'][1][0]"),
    )
    assert [(meta.path, meta.shape) for meta in described.inputs] == [
        ("args[0]", ("batch", 3)),
        ("kwargs['more']['b'][0]", (3,)),
    ]
    assert [(meta.path, meta.shape) for meta in described.outputs] == [
        ("result['y']", ("batch", 3)),
        ("result['rest'][1][0]", ()),
    ]
    from torch.utils._pytree import treespec_loads

    assert treespec_loads(described.call.in_spec) == program.call_spec.in_spec
    assert treespec_loads(described.call.out_spec) == program.call_spec.out_spec


def test_sizes_that_depend_on_values_are_spelled_as_symbols() -> None:
    program = an_export(lambda x, y: x.nonzero(), (rand(4, 3), rand(3)), None)
    (output,) = describe(program, dimension_names={}).outputs
    assert output.shape == ("u0", 2)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, y: (x + 1, "text"), "result[1] is the str 'text'"),
        (lambda x, y: (x + 1, 2.5), "result[1] is the float 2.5"),
        (lambda x, y: x.topk(2), "the result hold a type that cannot be recorded"),
    ],
)
def test_results_that_cannot_be_carried_are_refused_by_name(function: Callable[..., Any], said: str) -> None:
    program = an_export(function, (rand(4, 3), rand(3)), None)
    with pytest.raises(SourceNotExportable) as caught:
        describe(program, dimension_names={})
    assert caught.value.message.startswith(said)
    assert caught.value.hint


class Repeats(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        return x * n


def test_an_int_that_may_vary_is_refused_by_name() -> None:
    program = export(Repeats(), (rand(3), 4), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}, strict=False)
    with pytest.raises(SourceNotExportable, match=r"args\[1\] is a int that may vary"):
        describe(program, dimension_names={})


def test_a_constant_without_a_json_form_is_refused() -> None:
    program = export(Repeats(), (rand(3), float("inf")), strict=False)
    with pytest.raises(SourceNotExportable, match=r"args\[1\] is inf"):
        describe(program, dimension_names={})


def test_people_read_the_names_that_forward_has_and_documents_keep_the_places(tmp_path: Path) -> None:
    program = an_export(
        lambda x, y: x.view(x.shape[0], 2, -1).sum(1) if x.shape[1] != 10 else x,
        (rand(6, 4), rand(3)),
        ({0: batch(), 1: Dim.AUTO}, None),
        oblivious=False,
    )
    speak = forward_speaker(Wrapped(torch.add))
    for one in (program, saved_and_loaded(program)):
        plain, spoken = (describe(one, dimension_names={}, speak=call) for call in (str, speak))
        assert [replace(found, text="") for found in spoken.narrowed] == [
            replace(found, text="") for found in plain.narrowed
        ]
        assert (spoken.inputs, spoken.input_guards, spoken.call) == (plain.inputs, plain.input_guards, plain.call)
        assert any("x.size(1)" in found.text for found in spoken.narrowed)
        assert not any("args[" in found.text for found in spoken.narrowed)
    asked = CompileJob(recipe=Recipe(), profile=a_profile(), out=str(tmp_path), build=str(tmp_path))
    endless = Program(module=Repeats().eval(), examples=(Example((rand(3), float("inf"))),))
    with pytest.raises(SourceNotExportable, match=r"^n is inf, which cannot be recorded"):
        ArtifactMaker(asked, endless, isa="", progress=Progress(None)).make()


def test_an_assumption_that_no_guard_can_check_is_refused() -> None:
    free = {0: Dim.AUTO, 1: Dim.AUTO}
    program = an_export(lambda x, y: x + y, (rand(4, 6, 20)[:, :, :16], rand(4, 6, 16)), (free, free), oblivious=False)
    with pytest.raises(SourceNotExportable, match="_base"):
        describe(saved_and_loaded(program), dimension_names={})


class Variadic(nn.Module):
    def forward(self, *parts: Tensor) -> Tensor:
        return parts[0] + parts[1] * parts[2] if parts[0].shape[0] != 9 else parts[0]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_variadic_arguments(strict: bool, saved: bool) -> None:
    free = {0: Dim.AUTO}
    program = export(Variadic(), (rand(4),) * 3, dynamic_shapes={"parts": (free,) * 3}, strict=strict)
    described = describe(saved_and_loaded(program) if saved else program, dimension_names={})
    check = a_check(described)
    assert [meta.path for meta in described.inputs] == ["args[0]", "args[1]", "args[2]"]
    assert check([rand(5)] * 3) is None
    assert "args[2]: size 1" in (check([rand(5), rand(5), rand(1)]) or "")
    assert "!= 9" in (check([rand(9)] * 3) or "")


def outcomes(check: Check, calls: Sequence[Sequence[Tensor]]) -> list[bool]:
    return [check(call) is None for call in calls]


def test_a_saved_program_is_guarded_at_least_as_narrowly() -> None:
    dim = batch()
    program = an_export(
        lambda x, y: x.reshape(x.shape[0], 3, -1).sum(1) + y[:, :2],
        (rand(4, 6), rand(4, 9)),
        ({0: dim, 1: Dim.AUTO}, {0: dim}),
        oblivious=False,
    )
    calls = [[rand(b, w), rand(b, 9)] for b in (0, 1, 2, 5, 32, 33) for w in (3, 6, 7, 9, 12)]
    traced = outcomes(a_check(describe(program, dimension_names={})), calls)
    loaded = outcomes(a_check(describe(saved_and_loaded(program), dimension_names={})), calls)
    assert any(traced)
    assert all(one or not other for one, other in zip(traced, loaded, strict=True))
