"""Exports one point of a coverage: non-strict first, then strict, and both errors where both fail."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.positions import assert_positions
from aot.compile.program import Example, call_failed, first_lines, source_frame
from aot.compile.region_inputs import AUTO
from aot.compile.shapes import Point, Sizes
from aot.compile.torch_export import extra_keywords
from aot.errors import SourceNotExportable
from aot.recipes import NO_OTHER_ROUTE
from aot.schema.recipe import Dimension

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

_OPERATION = re.compile(r"\b(?:torch\.ops\.)?((?:aten|torchvision|prims|quantized)[.:][\w:.]+)")

_BRANCH = re.compile(r"data-dependent expression (.+?) \(unhinted")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported program whose lifted constants can be bound by name.

    `symbols` maps the program's symbols to dimension names ("s0" to "batch", or to "seq/8" where the symbol counts
    steps of 8); `lifted` names the constants that were lifted from code and plain attributes.
    """

    program: "ExportedProgram"
    symbols: Mapping[str, str]
    lifted: frozenset[str]
    mutated: frozenset[str]
    strict: bool
    seconds: float
    flops: int | None

    @property
    def nodes(self) -> int:
        return len(self.program.graph.nodes)


def export_point(module: "Module", point: Point, *, region: str, tree: Path | None) -> Exported:
    """Export `module` for `point`.

    Raises SourceNotLoadable when the module does not run on its own example, SourceNotExportable when it runs and
    neither way of exporting works; `details` then hold region, operation, source line and both texts.
    """
    started = time.monotonic()
    flops = run_eagerly(module, point.example, tree=tree)
    program, strict = _export_either(module, point, region=region, tree=tree)
    assert_positions(program)
    lifted = make_constants_bindable(program)
    return Exported(
        program=program,
        symbols=name_symbols(program, point.sizes, point.ranged),
        lifted=lifted,
        mutated=find_mutated(program),
        strict=strict,
        seconds=time.monotonic() - started,
        flops=flops,
    )


@contextlib.contextmanager
def sizes_from_one() -> Iterator[None]:
    """Let programs traced and compiled inside keep sizes of 0 and 1 open, which torch takes for constants otherwise."""
    from torch.fx.experimental import _config

    with _config.patch(backed_size_oblivious=True):
        yield


def run_eagerly(module: "Module", example: Example, *, tree: Path | None) -> int | None:
    """Call the module once as it is, and return the floating-point operations that it took; None if uncountable.

    Raises SourceNotLoadable with the source's own frame when the call fails.
    """
    import copy

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    # The call may write into buffers: the program that is exported must be the one that was opened.
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    counter = FlopCounterMode(display=False)
    for counting in (counter, contextlib.nullcontext()):
        args, kwargs = copy.deepcopy((example.args, dict(example.kwargs)))
        try:
            with torch.no_grad(), counting:
                module(*args, **kwargs)
            return int(counter.get_total_flops()) if counting is counter else None
        except Exception as error:
            # Some operations take no mode around them: attention with a score of one's own compiles when it is called.
            if counting is not counter:
                raise call_failed(error, tree) from error
            torch._dynamo.reset()  # what has failed is remembered, and would fail again
        finally:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if name in before and before[name].shape == buffer.shape:
                        buffer.copy_(before[name])
    raise AssertionError("one of the two calls has returned or raised")


def _export_either(module: "Module", point: Point, *, region: str, tree: Path | None) -> tuple["ExportedProgram", bool]:
    failures: list[Exception] = []
    for strict in (False, True):
        try:
            return _export(module, point, strict=strict), strict
        except Exception as error:
            failures.append(error)
    non_strict, strict_error = failures
    operation = find_operation(non_strict) or find_operation(strict_error)
    frame = source_frame(non_strict, tree) or source_frame(strict_error, tree)
    where = f" at {frame['file']}:{frame['line']}" if frame else ""
    raise SourceNotExportable(
        f"{region or 'the program'} does not export: {operation or type(non_strict).__name__}{where}: "
        f"{first_lines(non_strict)}",
        hint="make the operation traceable (torch.cond, torch._check, no .item() or numpy); " + NO_OTHER_ROUTE,
        details={
            "region": region,
            "operation": operation,
            "source": frame,
            "non_strict": str(non_strict)[:4000],
            "strict": str(strict_error)[:4000],
        },
    ) from non_strict


def _export(module: "Module", point: Point, *, strict: bool) -> "ExportedProgram":
    import torch

    args, kwargs = point.example.args, dict(point.example.kwargs)
    with torch.no_grad(), extra_keywords(module, args, kwargs):
        opened = _dynamic_shapes(point)
        shapes = None if opened is None else opened.dynamic_shapes(module, args, kwargs)
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)


def _dynamic_shapes(point: Point) -> Any:
    """Return torch's own spelling of the sizes that stay open, None when all are fixed."""
    from torch import Tensor
    from torch.export import Dim, ShapesCollection
    from torch.utils._pytree import tree_leaves

    symbols = {name: _open_dimension(dimension) for name, dimension in point.ranged.items()}
    collection = ShapesCollection()
    leaves = tree_leaves((point.example.args, dict(point.example.kwargs)))
    for leaf, sizes in zip(leaves, point.sizes, strict=True):
        if not isinstance(leaf, Tensor):
            continue
        named = {
            axis: _spell(symbols[size.dimension], size) for axis, size in sizes.items() if size.dimension in symbols
        }
        # Sizes with a name that is fixed here (a bucket) stay fixed, whatever else is left open.
        unnamed = [axis for axis in range(leaf.ndim) if point.automatic and axis not in sizes]
        unnamed += [axis for axis, size in sizes.items() if size.dimension == AUTO]
        free = dict.fromkeys(unnamed, Dim.AUTO)
        if named or free:
            collection[leaf] = named | free
    return collection if len(collection) else None


def _open_dimension(dimension: Dimension) -> Any:
    from torch.export import Dim

    step, high = dimension.multiple_of, dimension.high
    if step == 1:
        return Dim(dimension.name, min=dimension.low, max=high)
    low = -(-dimension.low // step)
    return step * Dim(f"_{dimension.name}", min=low, max=None if high is None else high // step)


def _spell(symbol: Any, size: Any) -> Any:
    scaled = symbol if size.scale == 1 else size.scale * symbol
    return scaled if size.offset == 0 else scaled + size.offset


def name_symbols(
    program: "ExportedProgram", sizes: tuple[Sizes, ...], ranged: Mapping[str, Dimension]
) -> dict[str, str]:
    """Return which symbol of the exported program is which dimension."""
    from torch import SymInt, Tensor
    from torch.export.graph_signature import InputKind

    wanted = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names: dict[str, str] = {}
    for name, axes in zip(wanted, sizes, strict=True):
        value = values.get(name)
        if not isinstance(value, Tensor):
            continue
        for axis, size in axes.items():
            extent = value.shape[axis]
            if size.dimension not in ranged or not isinstance(extent, SymInt):
                continue
            expression = extent.node.expr
            step = ranged[size.dimension].multiple_of
            if len(expression.free_symbols) == 1:
                symbol = next(iter(expression.free_symbols))
                if expression == size.scale * step * symbol + size.offset:
                    names.setdefault(str(symbol), size.dimension if step == 1 else f"{size.dimension}/{step}")
    return names


def make_constants_bindable(program: "ExportedProgram") -> frozenset[str]:
    """Turn lifted constants into buffers, so that compiled code asks for them by the names of `ep.constants`.

    Left as they are they come out as `_tensor_constantN`, which nothing maps back (torch 2.13).
    """
    from torch.export.graph_signature import InputKind

    lifted = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:
            spec.kind, spec.persistent = InputKind.BUFFER, False
            # Stored contiguous in the bundle, so compiled for that: Inductor traces the program again from its values.
            program.constants[spec.target] = program.constants[spec.target].detach().contiguous()
            lifted.append(spec.target)
    return frozenset(lifted)


def find_mutated(program: "ExportedProgram") -> frozenset[str]:
    """Return the buffers that a call writes into. A fresh export does not tell; the functionalized one does."""
    from torch.export.graph_signature import InputKind

    buffers = {one.arg.name for one in program.graph_signature.input_specs if one.kind is InputKind.BUFFER}
    if not any(node.users for node in program.graph.nodes if node.op == "placeholder" and node.name in buffers):
        return frozenset()  # nothing to write into, and tracing everything once more to see it takes its time
    return frozenset(program.run_decompositions({}).graph_signature.buffers_to_mutate.values())


def find_operation(error: BaseException | None) -> str:
    """Return the operation that an export error is about, "" where nothing names one.

    Torch's errors rarely say it: the operator that was being called when they arose is in the frames.
    """
    while error is not None:
        if match := _BRANCH.search(str(error)):
            return f"a branch or size that depends on data ({match[1]})"
        if operator := getattr(error, "func", None) or _operator_in_frames(error):
            return str(operator)
        if match := _OPERATION.search(str(error)):
            return match[1].rstrip(".:")
        error = error.__cause__ or error.__context__
    return ""


def _operator_in_frames(error: BaseException) -> Any:
    from torch._ops import OpOverload

    found = None
    trace = error.__traceback__
    while trace is not None:
        values = trace.tb_frame.f_locals
        found = next((values[name] for name in ("func", "op") if isinstance(values.get(name), OpOverload)), found)
        trace = trace.tb_next
    return found
