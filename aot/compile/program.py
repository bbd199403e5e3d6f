"""Programs: a module with example inputs and named dimensions, as a source's factory returns them.

The first step inside a compile child, and in the processes that prove what it made.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aot.compile.dimensions import Size, parse_dimensions
from aot.errors import AotError, CompileOutOfMemory, SourceNotLoadable
from aot.runtime.argument_names import Speak, speaker
from aot.schema.factor import Fingerprint
from aot.schema.recipe import Dimension

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_KEYS = {"module", "args", "kwargs", "examples", "dimensions", "dynamic_shapes"}
_FORMS = (
    "return (module, args), (module, args, kwargs), or a dict with `module` and `args` or `examples`, "
    "and if wanted `kwargs`, `dimensions` and `dynamic_shapes`"
)


@dataclass(frozen=True)
class Example:
    """One set of example inputs, as the module is called: `module(*args, **kwargs)`."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A module in eval mode with one example or more.

    `dynamic_shapes` is torch.export's structure (by argument name, or by position), with names of dimensions
    instead of `Dim` objects: `{"input_ids": {0: "batch", 1: "seq"}}`; "2*batch" and "batch+1" are understood.
    """

    module: "Module"
    examples: tuple[Example, ...]
    dimensions: tuple[Dimension, ...] = ()
    dynamic_shapes: Any = None
    located: tuple[tuple[Mapping[int, Size], ...], ...] | None = None  # where sizes sit, when that is known already
    identity: Fingerprint | None = None  # of an exported program, which comes without the module that has one


def open_factory(tree: Path, entry: str) -> Program:
    """Import `module:function` with `tree` first on the path, call it, and return the program it gives.

    Raises SourceNotLoadable, whose `details` hold the last frame of the source's own code.
    """
    module_name, colon, function_name = entry.partition(":")
    if not colon or not module_name or not function_name:
        raise SourceNotLoadable(
            f"wanted an entry `module:function`, found {entry!r}", hint="for example model:make", details={}
        )
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
        returned = factory()
    except AttributeError as error:
        if not _missing_factory(error, module_name, function_name):
            _refuse(error, tree, entry)
        raise SourceNotLoadable(
            f"{module_name} has no {function_name}", hint=f"define `def {function_name}():` there; {_FORMS}"
        ) from error
    except (Exception, SystemExit) as error:
        _refuse(error, tree, entry)
    return program_from(returned, entry)


def program_from(returned: Any, entry: str) -> Program:
    """Return the program that a factory's return value describes. Raises SourceNotLoadable."""
    match returned:
        case tuple() if len(returned) in (2, 3):
            return _assemble(dict(zip(("module", "args", "kwargs"), returned, strict=False)), entry)
        case Mapping():
            return _assemble(dict(returned), entry)
        case other:
            raise SourceNotLoadable(f"{entry} returned {_describe(other)}", hint=_FORMS)


def place_program(program: Program, device: str) -> Program:
    """Move the module and every example tensor to `device`, a card or "cpu"; what is there already stays as it is."""
    if device == "cpu":
        return program  # where a factory makes things, and where nothing is to be moved away from
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    def move(example: Example) -> Example:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(device), (example.args, dict(example.kwargs)))
        return Example(args, kwargs)

    program.module.to(device)
    return replace(program, examples=tuple(move(example) for example in program.examples))


def require_own_places(module: "Module") -> None:
    """Raise SourceNotLoadable for expanded weights: of such, elements have one place and cannot be written to."""
    import torch

    tensors = (*module.named_parameters(), *module.named_buffers())
    found = [name for name, tensor in tensors if tensor.layout is torch.strided and _is_expanded(tensor)]
    if found:
        raise SourceNotLoadable(
            f"wanted weights whose elements each have a place of their own, found expanded {', '.join(found[:5])}",
            hint="register a copy: `.expand(...).clone()`, or expand it in forward",
            details={"tensors": found[:50]},
        )


def _is_expanded(tensor: "Tensor") -> bool:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(size > 1 and stride == 0 for size, stride in sizes)


def forward_parameters(module: "Module") -> tuple[str, ...]:
    """Return the names of `forward`'s parameters in order; those of *args and **kwargs are left out."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind not in variable)


def forward_speaker(module: "Module") -> Speak:
    """Return what gives the name of a place in a call of the module, as `forward` has it."""
    return speaker(inspect.signature(module.forward))


def _assemble(parts: dict[str, Any], entry: str) -> Program:
    from torch.nn import Module

    if unknown := sorted(str(key) for key in parts.keys() - _KEYS):
        raise SourceNotLoadable(f"{entry} returned a dict with unknown key(s) {', '.join(unknown)}", hint=_FORMS)
    module = parts.get("module")
    if not isinstance(module, Module):
        raise SourceNotLoadable(
            f"{entry} must return a torch.nn.Module, found {_describe(module)}",
            hint="wrap a plain function into a Module whose forward calls it",
        )
    require_own_places(module)
    if ("args" in parts or "kwargs" in parts) == ("examples" in parts):
        raise SourceNotLoadable(f"{entry} must return either args and kwargs, or examples", hint=_FORMS)
    given = parts["examples"] if "examples" in parts else [(parts.get("args", ()), parts.get("kwargs"))]
    if not isinstance(given, (list, tuple)) or not given:
        raise SourceNotLoadable(f"{entry}: examples must be a list of (args, kwargs), found {_describe(given)}")
    examples = tuple(_example(item, f"{entry}: example {index}") for index, item in enumerate(given))
    return Program(
        module=module.eval(),
        examples=examples,
        dimensions=parse_dimensions(parts.get("dimensions"), entry),
        dynamic_shapes=parts.get("dynamic_shapes"),
    )


def _example(item: Any, what: str) -> Example:
    if not isinstance(item, tuple) or len(item) != 2:
        raise SourceNotLoadable(f"{what} must be a pair (args, kwargs), found {_describe(item)}")
    args, kwargs = item
    if not isinstance(args, (tuple, list)):
        raise SourceNotLoadable(
            f"{what}: args must be a tuple, found {_describe(args)}", hint="write (x,) for a single argument"
        )
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise SourceNotLoadable(f"{what}: kwargs must be a dict by argument name, found {_describe(kwargs)}")
    return Example(tuple(args), dict(kwargs))


def _missing_factory(error: AttributeError, module_name: str, function_name: str) -> bool:
    return error.name == function_name and error.obj is sys.modules.get(module_name)


def _refuse(error: BaseException, tree: Path, entry: str) -> NoReturn:
    if isinstance(error, AotError):
        raise error
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        raise CompileOutOfMemory(
            f"{entry} asked for more memory than there is: {_first_line(error)}",
            hint="raise the limit memory_bytes, or build the module with less memory",
        ) from error
    raise SourceNotLoadable(
        f"{entry} raised {type(error).__name__}: {_first_line(error)}",
        hint=_hint_at(error, tree),
        details={"exception": type(error).__name__, "frame": source_frame(error, tree)},
    ) from error


def _hint_at(error: BaseException, tree: Path) -> str:
    """What to do about a factory that raised. A file that it does not find beside its code was left out of the tree."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        missed = Path(error.filename)
        if not missed.is_absolute() or missed.is_relative_to(tree) or missed.is_relative_to(tree.resolve()):
            return (
                "a source holds no weights (see `left out:` where it was submitted): let the factory make the module "
                "without reading any, since one bundle serves every checkpoint; --freeze takes them by --weights"
            )
    return "call the factory by itself in a fresh Python with the same packages"


def source_frame(error: BaseException, tree: Path | None) -> dict[str, Any]:
    """Return the last frame of `error` that lies in `tree` as file, line, function and text; empty if there is none.

    With no tree, the last frame outside torch and this package.
    """
    frames = traceback.extract_tb(error.__traceback__)
    root = None if tree is None else tree.resolve()
    if isinstance(error, SyntaxError) and error.filename and root and Path(error.filename).is_relative_to(root):
        where = Path(error.filename).relative_to(root)
        return {"file": str(where), "line": error.lineno, "function": "", "text": (error.text or "").strip()}
    for frame in reversed(frames):
        path = Path(frame.filename)
        if root is not None and not path.is_relative_to(root):
            continue
        if root is None and ("torch" in path.parts or "aot" in path.parts):
            continue
        name = str(path.relative_to(root)) if root is not None else path.name
        return {"file": name, "line": frame.lineno, "function": frame.name, "text": frame.line or ""}
    return {}


def call_failed(error: BaseException, tree: Path | None) -> SourceNotLoadable:
    """Return what it means that a module raises `error` when it is called with its own example."""
    return SourceNotLoadable(
        f"the module does not run on its example inputs: {type(error).__name__}: {first_lines(error)}",
        hint="call the module with the factory's own args and kwargs first; every size that the recipe asks for "
        "must work as well",
        details={"exception": type(error).__name__, "frame": source_frame(error, tree)},
    )


def first_lines(error: BaseException, count: int = 2) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:count])[:400]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:300]


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}: ({', '.join(type(item).__name__ for item in value[:6])})"
    return "None" if value is None else f"a {type(value).__name__}"
