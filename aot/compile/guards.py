"""Input guards: under which conditions compiled code may be used for a call, written from the exported program.

Compiled code checks none of this itself (a mask of batch 1 reads out of bounds, another dtype computes garbage), and
`ep.module()`'s own check lets several of them pass. So everything is read from placeholders, ranges and guards here,
and checked at each call by `aot.runtime.guards`.

**Describe a program after it was compiled, with the very object that was compiled.** Inductor decides by size as
well, and adds what it then assumes to the program's ShapeEnv: a program exported for batch 1..32 was compiled for
`batch < 16` without a word. `narrowed` lists where the guards are tighter than the range that was declared.

A declared lower bound of 0 or 1 is only used where the trace allowed for it, that is when the export ran with
`torch.fx.experimental._config.backed_size_oblivious`: otherwise torch takes sizes to be at least 2, records nothing
of what it decided on that ground (`if x.shape[0] == 1` leaves no guard), and still declares the range from 1.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.compile.call_spec import FlatInput, build_call_spec, describe_tensor, read_inputs, read_outputs
from aot.compile.symbols import Symbols
from aot.compile.writes import written_placeholders
from aot.errors import SourceNotExportable
from aot.runtime.argument_names import Speak
from aot.runtime.expression import size_term
from aot.runtime.guard_text import spell
from aot.schema.artifact import CallSpec, TensorMeta
from aot.schema.guard import InputGuard

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Where compiled code covers less than was declared: `dimension` only from `low` to `high`, or a condition.

    What is left out can be compiled as a coverage of its own. `dimension` is "" for a condition.
    """

    text: str
    dimension: str = ""
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Described:
    """The convention and conditions of one compiled program; `narrowed` says where less is covered than declared."""

    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    input_guards: tuple[InputGuard, ...]
    call: CallSpec
    narrowed: tuple[Narrowing, ...] = ()


def describe(
    program: "ExportedProgram",
    *,
    dimension_names: Mapping[str, str],
    parameters: Sequence[str] = (),
    declared_lows: bool = False,
    speak: Speak = str,
) -> Described:
    """Return what a pod must know to call the compiled `program`, and when it may.

    `dimension_names` maps symbols to names of dimensions ("s26" to "batch", or to "seq/8" where the symbol counts
    steps of 8); `parameters` are the names of forward's parameters. `declared_lows` takes lower bounds of 0 and 1 as
    declared although the trace did not allow for them: only for programs that a proof runs at that bound. `speak`
    gives the name that an input has in what people read, from its place in the call.

    Raises SourceNotExportable for inputs, outputs and assumptions that cannot be carried, naming each.
    """
    input_leaves, tensors = read_inputs(program, speak=speak)
    symbols = Symbols(
        program,
        [tensor.value for tensor in tensors],
        dimension_names,
        paths=[tensor.path for tensor in tensors],
        spoken=[tensor.spoken for tensor in tensors],
        declared_lows=declared_lows,
    )
    output_leaves, outputs = read_outputs(program, symbols.spell)
    _refuse_odd_tensors(tensors)
    return Described(
        inputs=tuple(describe_tensor(tensor.value, tensor.path, symbols.spell) for tensor in tensors),
        outputs=outputs,
        input_guards=tuple(_write_guards(program, tensors, symbols)),
        call=build_call_spec(program, input_leaves, output_leaves, parameters),
        narrowed=tuple(_narrowed(tensors, symbols)),
    )


def _write_guards(program: "ExportedProgram", tensors: Sequence[FlatInput], symbols: Symbols) -> Iterator[InputGuard]:
    for position, tensor in enumerate(tensors):
        value = tensor.value
        yield InputGuard(kind="dtype", input=position, value=str(value.dtype).removeprefix("torch."))
        yield InputGuard(kind="device", input=position, value=value.device.type)
        yield InputGuard(kind="rank", input=position, low=value.dim())
        for dim, size in enumerate(value.shape):
            yield from _write_size(symbols.canonical(size), (position, dim), symbols)
        strides = tuple(_write_stride(symbols.canonical(stride), symbols) for stride in value.stride())
        yield InputGuard(kind="stride", input=position, strides=strides)
    for condition in symbols.conditions():
        yield _write_condition(condition)
    written = written_placeholders(program)
    for position, tensor in enumerate(tensors):
        if tensor.name in written:
            yield InputGuard(kind="apart", input=position)
    yield InputGuard(kind="no-autocast")
    yield InputGuard(kind="no-grad")


def _write_size(expression: Any, place: tuple[int, int], symbols: Symbols) -> Iterator[InputGuard]:
    position, dim = place
    if expression.is_number:
        yield InputGuard(kind="size", input=position, dim=dim, low=int(expression))
        return
    if symbols.first[expression] != place:
        yield InputGuard(kind="equal", input=position, dim=dim, other=symbols.first[expression])
        return
    bounds = symbols.bounds_of(expression)
    yield InputGuard(kind="range", input=position, dim=dim, low=bounds.low, high=bounds.high)
    match symbols.defining(place, expression):
        case None:
            yield _write_condition(symbols.checked(f"s[{position}][{dim}] == {symbols.place(expression)}"))
        case (factor, 0) if factor > 1:
            yield InputGuard(kind="divisible", input=position, dim=dim, low=factor)
        case (factor, offset) if factor > 1:
            yield _write_condition(f"s[{position}][{dim}] % {factor} == {offset % factor}")


def _write_stride(expression: Any, symbols: Symbols) -> int | str:
    if expression.is_number:
        return int(expression)
    text = symbols.place(expression)
    return int(text) if text.isdecimal() else text


def _write_condition(text: str) -> InputGuard:
    """Return a divisible guard where `text` is just that, for the better message; else an expression."""
    match ast.parse(text, mode="eval").body:
        case ast.Compare(
            left=ast.BinOp(op=ast.Mod(), left=size, right=ast.Constant(value=int() as factor)),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=0)],
        ) if (place := size_term(size)) and factor > 0:
            return InputGuard(kind="divisible", input=place[0], dim=place[1], low=factor)
    return InputGuard(kind="expression", value=text)


def _narrowed(tensors: Sequence[FlatInput], symbols: Symbols) -> Iterator[Narrowing]:
    spoken = [tensor.spoken for tensor in tensors]
    for expression, (position, dim) in symbols.first.items():
        declared, found = symbols.declared(expression), symbols.bounds_of(expression)
        if declared.within(found.low, found.high) == declared:
            continue
        name = str(symbols.spell(expression))
        text = f"{name} (dimension {dim} of {spoken[position]}): declared {declared}, compiled for {found}"
        yield Narrowing(text=text, dimension=name, low=found.low, high=found.high)
    for condition in symbols.conditions():
        yield Narrowing(text=f"only where {spell(condition, spoken)}")


def _refuse_odd_tensors(tensors: Sequence[FlatInput]) -> None:
    import torch

    for tensor in tensors:
        if tensor.value.layout is not torch.strided:
            raise SourceNotExportable(
                f"{tensor.spoken} is a {tensor.value.layout} tensor; compiled code takes dense ones",
                hint="convert it with to_dense() before the call",
            )
