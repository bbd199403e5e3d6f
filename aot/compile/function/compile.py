"""Compiles one call of the program with `torch.compile(...).aot_compile`, and takes out of it what a loader needs.

The only place of a build that knows this interface of torch (2.11 to 2.13, where it is marked experimental).
"""

import pickle
import re
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.export import first_lines
from aot.compile.function.describe import flat_tensors
from aot.compile.function.guards import GuardLog
from aot.compile.inductor import translate_failure
from aot.compile.program import Example, source_frame
from aot.compile.shapes import Point
from aot.compile.torch_inductor import known_options
from aot.compile.torch_tuning import Around, Question, Tuning, watch_tuning
from aot.errors import AotError, SourceNotExportable
from aot.runtime.fingerprint import code_in_fingerprint
from aot.runtime.function import FUNCTION_FILE, LIBRARIES
from aot.runtime.function_kernels import record_kernels
from aot.schema.artifact import Kernel
from aot.schema.guard import ProgramGuard

if TYPE_CHECKING:
    from torch.nn import Module

_LOCAL = re.compile(r"<locals>")
_WAYS = 'let the program be one graph (torch._dynamo.explain tells where it breaks), or set routes = ["package"]'


@dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """Files below `directory`, by relative path: `function/compiled.bin`, and a shared object for each kernel."""

    directory: Path
    files: tuple[str, ...]
    guards: tuple[ProgramGuard, ...]
    elsewhere: Mapping[str, int]  # guards that are held by something else, by kind and by what
    tuning: Tuning
    seconds: float

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(self.tuning.kernels)

    @property
    def libraries(self) -> tuple[Path, ...]:
        return tuple(self.directory / path for path in self.files if path.startswith(LIBRARIES))


def refuse_local_classes(module: "Module") -> None:
    """Raises SourceNotExportable naming the first module whose class no other process can import."""
    for name, part in module.named_modules():
        kind = type(part)
        if _LOCAL.search(kind.__qualname__):
            raise SourceNotExportable(
                f"{name or 'the module'} is of the class {kind.__qualname__}, which is defined inside a function: a "
                "function's guards name classes, and a pod could not import it",
                hint="define the class at the top of its module",
                details={"region": "", "name": name},
            )


def compile_function(
    module: "Module",
    point: Point,
    settings: Mapping[str, Any],
    *,
    into: Path,
    tree: Path | None,
    around_tuning: Around = lambda what: nullcontext(),
    measured_here: set[Question] | None = None,
) -> CompiledFunction:
    """Compile `module` as it is called at `point`, and write what a loader needs into `into`.

    `around_tuning` and `measured_here` are `watch_tuning`'s.

    Raises SourceNotExportable, with the source's own frame, for a graph break, a size that does not stay open and a
    guard that cannot be saved; BackendFailed with an excerpt of what the compiler said.
    """
    started, guards = time.monotonic(), GuardLog(code_in_fingerprint(module))
    try:
        with watch_tuning(around_tuning, measured_here=measured_here) as tuning, record_kernels() as libraries:
            content, conditions = _compile(module, point, settings, guards)
    except Exception as error:
        raise _translate(error, tree, guards.globals()) from error
    guards.require_saved()
    files = [_write(into, FUNCTION_FILE, content)]
    files += [_write(into, f"{LIBRARIES}{name}.so", path.read_bytes()) for name, path in sorted(libraries.items())]
    return CompiledFunction(
        directory=into,
        files=tuple(files),
        guards=guards.describe(conditions),
        elsewhere=dict(guards.elsewhere),
        tuning=tuning,
        seconds=time.monotonic() - started,
    )


def _compile(
    module: "Module", point: Point, settings: Mapping[str, Any], guards: GuardLog
) -> tuple[bytes, tuple[str, ...]]:
    """Return the serialised function and the conditions of its guards, as Dynamo spells them. Raises its exceptions."""
    import torch
    from torch._dynamo.aot_compile import AOTCompiledFunction
    from torch._dynamo.package import SourceInfo

    known = known_options()
    chosen = {name: value for name, value in settings.items() if name in known}
    torch._dynamo.reset()
    with (
        torch.no_grad(),
        torch._inductor.config.patch(chosen),
        torch._dynamo.config.patch(automatic_dynamic_shapes=False, assume_static_by_default=True),
        _marked(point) as example,
    ):
        function = torch.compile(type(module).forward, fullgraph=True, options={"guard_filter_fn": guards.keep})
        compiled = function.aot_compile(((module, *example.args), dict(example.kwargs)))
    artifacts = compiled._artifacts
    # The whole text of every module that was inlined: no pod asks for it.
    artifacts.source_info = SourceInfo(inlined_sources=set())
    return AOTCompiledFunction.serialize(compiled).serialized_data, tuple(artifacts.guard_manager.code_parts)


@contextmanager
def _marked(point: Point) -> Iterator[Example]:
    """Give the example with its open sizes marked for Dynamo; the marks are on tensors of its own."""
    import copy

    from torch import Tensor
    from torch._dynamo import mark_dynamic
    from torch.utils._pytree import tree_leaves

    args, kwargs = copy.deepcopy((point.example.args, dict(point.example.kwargs)))
    example = Example(args, kwargs)
    for leaf, axes in zip(tree_leaves((args, kwargs)), point.sizes, strict=True):
        for axis, size in axes.items():
            dimension = point.ranged.get(size.dimension)
            if dimension is not None and isinstance(leaf, Tensor):
                mark_dynamic(leaf, axis, min=dimension.low, max=dimension.high)
    assert len(flat_tensors(example)) == len(flat_tensors(point.example))
    yield example


def _write(directory: Path, path: str, content: bytes) -> str:
    place = directory / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return path


def _translate(error: Exception, tree: Path | None, values: Sequence[str] = ()) -> AotError:
    """Return what an exception out of Dynamo means for the caller of a build; `values` are the globals in guards."""
    if isinstance(error, AotError):
        return error
    from torch._dynamo import exc
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    details = {"region": "", "exception": type(error).__name__, "frame": source_frame(error, tree)}
    text = first_lines(error)
    match error:
        case exc.PackageError() | TypeError() | pickle.PicklingError() if values and _is_saving(error):
            return SourceNotExportable(
                f"a guard of the program cannot be saved, on the value of one of {', '.join(values)}: {text}",
                hint="keep in globals what can be pickled, define classes at the top of their modules",
                details={**details, "guards": list(values)},
            )
        case exc.Unsupported():
            return SourceNotExportable(f"the program is not one graph: {text}", hint=_WAYS, details=details)
        case exc.PackageError():
            return SourceNotExportable(
                f"a guard of the program cannot be saved: {text}",
                hint="define classes at the top of their modules, and pass what changes as an argument",
                details=details,
            )
        case ConstraintViolationError() | exc.UserError():
            return SourceNotExportable(
                f"a size that should stay open does not: {text}",
                hint="give the dimension buckets, or narrow it in the recipe",
                details=details,
            )
        case RuntimeError() if "Failed to serialize the following objects" in str(error):
            return SourceNotExportable(
                f"the program reaches a module that is neither its own nor an argument: {text}",
                hint="make it a submodule",
                details=details,
            )
    if isinstance(error, exc.TorchDynamoException) and not isinstance(error, exc.BackendCompilerFailed):
        return SourceNotExportable(f"Dynamo cannot trace the program: {text}", hint=_WAYS, details=details)
    return translate_failure(error, "")


def _is_saving(error: Exception) -> bool:
    """Whether an exception comes out of Dynamo's serialising of guards."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in ("serialize_guards", "pickle_guards_state") for frame in frames)
