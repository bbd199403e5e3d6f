"""The calling convention of an exported program: its pytrees, what each leaf is, and the form of each tensor.

Read from the program's signature. What compiled code cannot carry is refused here, by the path of the argument.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.errors import SourceNotExportable
from aot.runtime.argument_names import Speak
from aot.schema.artifact import CallSpec, Leaf, LeafKind, TensorMeta

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_CONSTANTS = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class FlatInput:
    """One tensor among the flat inputs: the placeholder's name and its fake value. `spoken` is its path for people."""

    name: str
    path: str
    spoken: str
    value: "Tensor"


def read_inputs(program: "ExportedProgram", *, speak: Speak = str) -> tuple[tuple[Leaf, ...], tuple[FlatInput, ...]]:
    """Return every leaf of the call and, in order, the tensors among them.

    Raises SourceNotExportable for leaves that are neither tensors nor constants, naming them as `speak` does.
    """
    from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    leaves: list[Leaf] = []
    tensors: list[FlatInput] = []
    for spec, path in zip(specs, leaf_paths(program.call_spec.in_spec), strict=True):
        match spec.arg:
            case TensorArgument(name=name):
                leaves.append(Leaf(kind=LeafKind.TENSOR, path=path))
                tensors.append(FlatInput(name, path, speak(path), values[name]))
            case ConstantArgument(value=value):
                leaves.append(_constant(value, path, speak))
            case other:
                raise SourceNotExportable(
                    f"{speak(path)} is a {_kind_of(other)} that may vary; compiled code takes tensors only",
                    hint="pass it as a 0-dim tensor, or leave it out of dynamic_shapes to fix its value",
                )
    return tuple(leaves), tuple(tensors)


def read_outputs(
    program: "ExportedProgram", spell: Callable[[Any], int | str]
) -> tuple[tuple[Leaf, ...], tuple[TensorMeta, ...]]:
    """Return every leaf of the result and, in order, the form of the tensors among them; `spell` writes a size.

    Raises SourceNotExportable for texts, floats and objects, naming them.
    """
    from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument

    values = _values(program)
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    leaves: list[Leaf] = []
    tensors: list[TensorMeta] = []
    for spec, path in zip(specs, output_paths(program.call_spec.out_spec), strict=True):
        kind = type(spec.arg).__name__
        match spec.arg:
            case TensorArgument(name=name):
                leaves.append(Leaf(kind=LeafKind.TENSOR, path=path))
                tensors.append(describe_tensor(values[name], path, spell))
            case ConstantArgument(value=None):
                leaves.append(Leaf(kind=LeafKind.NONE, path=path))
            case ConstantArgument(value=value) if isinstance(value, int):
                leaves.append(_number(type(value).__name__, path))
            case _ if kind in _SYMBOLIC:
                leaves.append(_number(_SYMBOLIC[kind], path))
            case ConstantArgument(value=value):
                raise _refuse_output(path, f"the {type(value).__name__} {value!r}")
            case _:
                raise _refuse_output(path, f"a {_kind_of(spec.arg)}")
    return tuple(leaves), tuple(tensors)


def build_call_spec(
    program: "ExportedProgram", inputs: tuple[Leaf, ...], outputs: tuple[Leaf, ...], parameters: Sequence[str]
) -> CallSpec:
    """Return the call spec. Raises SourceNotExportable where a pytree node has no serialised form."""
    spec = program.call_spec
    return CallSpec(
        in_spec=_dump(spec.in_spec, "the inputs"),
        out_spec=_dump(spec.out_spec, "the result"),
        inputs=inputs,
        outputs=outputs,
        parameters=tuple(parameters),
    )


def describe_tensor(tensor: "Tensor", path: str, spell: Callable[[Any], int | str]) -> TensorMeta:
    return TensorMeta(
        path=path,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(spell(size) for size in tensor.shape),
        stride=tuple(spell(stride) for stride in tensor.stride()),
        device=tensor.device.type,
    )


def leaf_paths(spec: Any) -> tuple[str, ...]:
    """Return the path of every leaf of a call's TreeSpec: "args[0]", "kwargs['mask'][1]"."""
    args, kwargs = spec.children()
    positional = [path for index, child in enumerate(args.children()) for path in _paths(child, f"args[{index}]")]
    named = zip(kwargs.context, kwargs.children(), strict=True)
    return (*positional, *(path for key, child in named for path in _paths(child, f"kwargs[{key!r}]")))


def output_paths(spec: Any) -> tuple[str, ...]:
    """Return the path of every leaf of a result: "result", "result[0]", "result['logits']"."""
    return tuple(_paths(spec, "result"))


def _paths(spec: Any, path: str) -> list[str]:
    if spec.is_leaf():
        return [path]
    keys = spec.context if isinstance(spec.context, list) else None
    if keys is None and isinstance(spec.context, list | tuple) and len(spec.context) == 2:
        keys = spec.context[1] if isinstance(spec.context[1], list) else None  # defaultdict: factory and keys
    if keys is None or len(keys) != spec.num_children:
        keys = range(spec.num_children)
    pairs = zip(keys, spec.children(), strict=True)
    return [inner for key, child in pairs for inner in _paths(child, f"{path}[{key!r}]")]


# 0-dim tensors in compiled code; `item()` gives back the number that eager returns.
_SYMBOLIC: Mapping[str, str] = {"SymIntArgument": "int", "SymFloatArgument": "float", "SymBoolArgument": "bool"}


def _number(kind: str, path: str) -> Leaf:
    return Leaf(kind=LeafKind.INTEGER, path=path, constant_type=kind)


def _constant(value: Any, path: str, speak: Speak) -> Leaf:
    if value is None:
        return Leaf(kind=LeafKind.NONE, path=path)
    if not isinstance(value, _CONSTANTS) or (isinstance(value, float) and not math.isfinite(value)):
        raise SourceNotExportable(
            f"{speak(path)} is {value!r}, which cannot be recorded as a constant of the call",
            hint="integers, finite floats, booleans and texts can",
        )
    return Leaf(kind=LeafKind.CONSTANT, path=path, constant=value, constant_type=type(value).__name__)


def _refuse_output(path: str, what: str) -> SourceNotExportable:
    return SourceNotExportable(
        f"{path} is {what}; compiled code returns tensors, integers and None",
        hint="return it from a wrapper around the compiled part instead",
    )


def _kind_of(argument: Any) -> str:
    return {"SymIntArgument": "int", "SymFloatArgument": "float", "SymBoolArgument": "bool"}.get(
        type(argument).__name__, type(argument).__name__.removesuffix("Argument")
    )


def _values(program: "ExportedProgram") -> dict[str, Any]:
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _dump(spec: Any, what: str) -> str:
    from torch.utils._pytree import treespec_dumps

    try:
        return treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise SourceNotExportable(
            f"{what} hold a type that cannot be recorded: {str(error).splitlines()[0]}",
            hint="use tuples, lists, dicts, or register the type with a serialised name (torch.utils._pytree)",
        ) from error
