"""Stripped programs: an exported program without its weights, as a source to submit, and the way back.

The client strips what torch.export.save wrote; a compile child opens the result with synthetic weights. What stays:
the graph, lifted constants with their values, and of parameters, buffers and example inputs the form alone (integer
inputs keep their values, since token ids and positions must stay in their tables). Source paths go as well, so that
equal programs give equal bytes on every machine.
"""

import errno
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from aot.bundle.hashing import blob_of
from aot.compile.dimensions import Size
from aot.compile.outline import copy_member, write_outline
from aot.compile.program import Example, Program, require_own_places
from aot.errors import InvalidSource, SourceNotLoadable
from aot.runtime.code import full_name
from aot.runtime.program import fingerprint_program
from aot.schema.recipe import Dimension

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

# Where a node came from in the exporter's files; everything else of a node's record is part of the program.
_TRACES = ("stack_trace", "source_fn_stack", "custom")
# Export's mark on nodes that it made itself and that belong to no module: the size of a second dynamic input, say.
_OF_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_WRITE_ONE = "write it with torch.export.save(torch.export.export(module, args), path)"


def strip_program(source: Path, target: Path) -> int:
    """Write the program of `source` to `target` without weights, and return how many bytes these have.

    Equal programs give equal bytes. Of the weights no byte is read, so that neither time nor memory grow with them;
    an archive of another layout than today's is loaded whole. Raises InvalidSource when `source` was not written by
    torch.export.save, OSError when the disk of `target` is full.
    """
    import torch

    if not zipfile.is_zipfile(source):
        raise InvalidSource(f"{source.name} is no exported program: no archive, or not all of one", hint=_WRITE_ONE)
    try:
        program = _load_outline(source, beside=target.parent)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # that is nothing of the program's
        raise InvalidSource(
            f"{source.name} is no exported program: {type(error).__name__}: {str(error)[:200]}", hint=_WRITE_ONE
        ) from error
    weight_bytes = _drop_values(program)
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            for key in _TRACES:
                node.meta.pop(key, None)
    # To a file: lifted constants, which stay, may be large too.
    with tempfile.TemporaryFile(dir=target.parent) as saved:
        with warnings.catch_warnings():
            # Torch looks for the whole tensor behind each weight, and there is none any more.
            warnings.filterwarnings("ignore", message="No complete tensor found")
            torch.export.save(program, saved)
        temporary = target.with_name(target.name + ".part")
        _write_plainly(saved, temporary)
    temporary.replace(target)
    return weight_bytes


def open_program(path: Path, *, seed: int) -> Program:
    """Open a stripped program with weights drawn from `seed`. Its dimensions are named after its symbols ("s27").

    Raises SourceNotLoadable when the file does not load, has no example inputs, or weights that are expanded.
    """
    import inspect

    from aot.compile.weights import seed_weights

    try:
        with path.open("rb") as file:
            exported = _load(file)
    except Exception as error:
        raise SourceNotLoadable(
            f"the exported program does not load: {type(error).__name__}: {str(error)[:300]}",
            hint="export it with the torch release of the profile",
        ) from error
    if exported.example_inputs is None:
        raise SourceNotLoadable("the exported program has no example inputs", hint="export it with torch >= 2.11")
    _restore_values(exported)
    sizes = tuple(_sizes_of(exported))
    options = {"check_guards": False} if "check_guards" in inspect.signature(exported.module).parameters else {}
    module = exported.module(**options)
    identity = fingerprint_program(
        blob_of(path).digest,
        graph=module,
        classes=_classes_of(exported),
        constants={name: value for name, value in exported.constants.items() if name not in _held_by_module(exported)},
    )
    require_own_places(module)
    seed_weights(module, seed)
    args, kwargs = exported.example_inputs
    used = {size.dimension for leaf in sizes for size in leaf.values()}
    return Program(
        module=module,
        examples=(Example(tuple(args), dict(kwargs or {})),),
        dimensions=tuple(dimension for dimension in _ranges_of(exported) if dimension.name in used),
        located=(sizes,),
        identity=identity,
    )


def _load_outline(source: Path, *, beside: Path) -> "ExportedProgram":
    """Load the program with one element in place of each weight, or as it is. Raises whatever torch raises."""
    with tempfile.TemporaryFile(dir=beside) as outline:
        if write_outline(source, outline):
            return _load(outline)
    with source.open("rb") as whole:
        return _load(whole)


def _load(file: IO[bytes]) -> "ExportedProgram":
    """Raises whatever torch raises, without the traceback that it logs on the way."""
    import logging

    import torch

    log = logging.getLogger("torch.export")
    before, log.disabled = log.disabled, True
    try:
        # Not by its path, at which torch wants to see the suffix .pt2.
        return torch.export.load(file)
    finally:
        log.disabled = before


def _drop_values(program: "ExportedProgram") -> int:
    """Replace weights and real-valued example inputs by tensors of one element, repeated to their shape.

    Returns the bytes of the weights, of tied ones once.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    replaced: dict[tuple[Any, ...], Tensor] = {}

    def empty(tensor: "Tensor") -> "Tensor":
        if tensor.numel() == 0:  # it has no value, and torch does not save one that has memory
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        # Tied tensors stay tied: the same storage is the same replacement.
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.dtype)
        if place not in replaced:
            replaced[place] = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        return replaced[place]

    for name, tensor in list(program.state_dict.items()):
        plain = empty(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        program.state_dict[name] = torch.nn.Parameter(plain, tensor.requires_grad) if is_parameter else plain
    for name in _held_by_module(program):
        if name in program.constants:
            program.constants[name] = empty(program.constants[name])
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in replaced.values())
    if program.example_inputs is not None:
        program._example_inputs = tree_map_only(
            torch.Tensor,
            lambda tensor: empty(tensor) if tensor.is_floating_point() or tensor.is_complex() else tensor,
            program.example_inputs,
        )
    return weight_bytes


def _restore_values(program: "ExportedProgram") -> None:
    """Give every tensor a memory of its own, in the form that the graph was traced with."""
    import torch
    from torch.utils._pytree import tree_map_only

    forms = {
        spec.target: node.meta["val"]
        for spec, node in zip(program.graph_signature.input_specs, _placeholders(program), strict=True)
        if spec.target is not None
    }
    fresh: dict[tuple[Any, ...], Tensor] = {}

    def restore(name: str, tensor: "Tensor") -> "Tensor":
        form = forms.get(name, tensor)
        shape, stride = tuple(map(int, form.shape)), tuple(map(int, form.stride()))
        # One element stands for all of a memory that begin there with one shape, a square weight and its transpose:
        # tied are those that have the same strides too. (All that are empty lie nowhere.)
        place = (tensor.data_ptr() or name, shape, stride)
        if place not in fresh:
            fresh[place] = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).zero_()
        return fresh[place]

    for name, tensor in list(program.state_dict.items()):
        restored = restore(name, tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        program.state_dict[name] = torch.nn.Parameter(restored, tensor.requires_grad) if is_parameter else restored
    for name in _held_by_module(program):
        if name in program.constants:
            program.constants[name] = restore(name, program.constants[name])
    program._example_inputs = tree_map_only(torch.Tensor, _redraw, program.example_inputs)


def _redraw(tensor: "Tensor") -> "Tensor":
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or 0 not in tensor.stride():
        return tensor
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)


def _classes_of(program: "ExportedProgram") -> dict[str, str | None]:
    """The class of every module by dotted name, None for one that was not called: the graph tells of calls alone."""
    classes: dict[str, str | None] = {entry.fqn: None for entry in program.module_call_graph}
    for node in program.graph.nodes:
        for key, (where, kind) in (node.meta.get("nn_module_stack") or {}).items():
            if key == _OF_NO_MODULE:
                continue
            # A module that is called again goes by `name@1`.
            classes[where.partition("@")[0]] = kind if isinstance(kind, str) else full_name(kind)
    return classes


def _held_by_module(program: "ExportedProgram") -> frozenset[str]:
    """Names of buffers that the module holds but a state dict leaves out: weights, though export lists them apart."""
    return frozenset(program.graph_signature.non_persistent_buffers)


def _placeholders(program: "ExportedProgram") -> list[Any]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _sizes_of(program: "ExportedProgram") -> Iterator[Mapping[int, Size]]:
    """Yield, for each leaf of the call, which of its axes are which symbol."""
    from torch import SymInt, Tensor
    from torch.export.graph_signature import InputKind

    for spec, node in zip(program.graph_signature.input_specs, _placeholders(program), strict=True):
        if spec.kind is not InputKind.USER_INPUT:
            continue
        value = node.meta.get("val")
        axes = enumerate(value.shape) if isinstance(value, Tensor) else ()
        sizes = {axis: _size_of(size.node.expr) for axis, size in axes if isinstance(size, SymInt)}
        yield {axis: size for axis, size in sizes.items() if size is not None}


def _size_of(expression: Any) -> Size | None:
    """Read `a * symbol + b`; None for any other expression, whose size then stays that of the example."""
    if len(expression.free_symbols) != 1:
        return None
    symbol = next(iter(expression.free_symbols))
    offset = expression.subs(symbol, 0)
    scale = expression.subs(symbol, 1) - offset
    if not offset.is_Integer or not scale.is_Integer or scale < 1 or expression != scale * symbol + offset:
        return None
    return Size(str(symbol), int(scale), int(offset))


def _ranges_of(program: "ExportedProgram") -> Iterator[Dimension]:
    for symbol, values in program.range_constraints.items():
        if symbol.is_Symbol:
            high = int(values.upper) if values.upper.is_Integer and values.upper < 2**31 else None
            yield Dimension(name=str(symbol), low=int(values.lower), high=high)


def _write_plainly(saved: IO[bytes], target: Path) -> None:
    """Write the archive again in a fixed order, and without the identifier that torch draws for each save."""
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as plain:
        for name in sorted(archive.namelist()):
            if not name.endswith("/.data/serialization_id"):
                copy_member(archive, archive.getinfo(name), plain)
