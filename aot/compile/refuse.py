"""Refusals by name: programs of kinds that this route cannot carry, each with the way that may work.

Called on the opened program before export, and on the exported graph before it is compiled.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from aot.compile.program import Program
from aot.errors import SourceNotExportable
from aot.recipes import NO_OTHER_ROUTE
from aot.schema.recipe import Randomness, Recipe

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node
    from torch.nn import Module

# Arguments that switch an operation's randomness off: dropout's `train`, attention's `dropout_p`.
_SWITCHES = ("train", "training", "dropout_p")
_PROBABILITIES = ("p", "dropout")


def refuse_program(program: Program) -> None:
    """Raises SourceNotExportable for the first part that cannot be exported, whatever the export would say of it."""
    for name, module in program.module.named_modules():
        if complaint := _complain_of_module(module):
            what, hint = complaint
            _refuse(f"{_spell(name, module)} is {what}", hint, name)
    for name, tensor in _tensors_of(program.module):
        if complaint := _complain_of_tensor(tensor):
            what, hint = complaint
            _refuse(f"{name} is {what}", hint, name)
    for index, example in enumerate(program.examples):
        from torch import Tensor
        from torch.utils._pytree import keystr, tree_flatten_with_path

        leaves, _ = tree_flatten_with_path((example.args, dict(example.kwargs)))
        for path, leaf in leaves:
            if isinstance(leaf, Tensor) and (complaint := _complain_of_tensor(leaf)):
                _refuse(f"input {keystr(path)} of example {index} is {complaint[0]}", complaint[1], keystr(path))


def refuse_random(graph: "GraphModule", recipe: Recipe, *, region: str) -> tuple[str, ...]:
    """Return the operations of `graph` that draw random numbers.

    Raises SourceNotExportable when there are any and the recipe does not say that they need not be checked.
    """
    drawn = tuple(dict.fromkeys(str(node.target) for node in random_nodes(graph)))
    if drawn and recipe.random is Randomness.REFUSE:
        raise SourceNotExportable(
            f"the program draws random numbers ({', '.join(drawn)}), so its outputs cannot be compared with eager's",
            hint='put the module into eval mode, pass the noise as an input, or set random = "unchecked" in the recipe',
            details={"region": region, "operations": list(drawn)},
        )
    return drawn


def refuse_state(written: Iterable[str], *, region: str) -> None:
    """Raises SourceNotExportable for a program to freeze that writes into its buffers."""
    if names := sorted(written):
        raise SourceNotExportable(
            f"the program writes into {', '.join(names)}, and a frozen artifact would keep that state to itself",
            hint="build without freeze, or pass the state as an input and return it",
            details={"region": region, "buffers": names},
        )


def random_nodes(graph: "GraphModule") -> Iterator["Node"]:
    """Yield every node of `graph` and of its inner graphs that draws random numbers when it runs."""
    from torch import Tag
    from torch.fx import GraphModule as Graph

    for module in graph.modules():
        if not isinstance(module, Graph):
            continue
        for node in module.graph.nodes:
            draws = node.op == "call_function" and Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if draws and not _switched_off(node):
                yield node


def _switched_off(node: "Node") -> bool:
    arguments = _arguments(node)
    if any(name in arguments and not arguments[name] for name in _SWITCHES):
        return True
    return "train" in arguments and any(arguments.get(name) == 0 for name in _PROBABILITIES)


def _arguments(node: "Node") -> dict[str, Any]:
    """Arguments by name, defaults included."""
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(node.kwargs)
    values = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    values |= dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    return values | dict(node.kwargs)


def _complain_of_module(module: "Module") -> tuple[str, str] | None:
    import torch

    kind = type(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule, whose Python code is gone", "return the module that was scripted or traced"
    if name == "torch._dynamo.eval_frame.OptimizedModule":
        return "the result of torch.compile", "return the module itself: compiling it is this build's work"
    if isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        return "a data-parallel wrapper", "return its .module: each replica loads the artifact for itself"
    if any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule") for base in kind.__mro__):
        return "sharded by FSDP", "build from the unsharded module; shards have other shapes than the program"
    if name.startswith(("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        return "a module of torch.ao's eager-mode quantization", (
            "quantize the exported program with torchao's PT2E flow, or keep plain tensors and dequantize in forward"
        )
    return None


def _complain_of_tensor(tensor: "Tensor") -> tuple[str, str] | None:
    import torch

    kind = type(tensor)
    checks: tuple[tuple[bool, str, str], ...] = (
        (
            isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin),
            "not initialized yet",
            "call the lazy module once in the factory",
        ),
        (
            kind.__name__ == "DTensor",
            "a DTensor",
            "build from the full module, or one rank's local program with plain tensors",
        ),
        (
            kind not in (torch.Tensor, torch.nn.Parameter),
            f"a tensor subclass, {kind.__module__}.{kind.__qualname__}",
            "unwrap it to plain tensors in the factory (torchao.utils.unwrap_tensor_subclass, or .dequantize()); "
            + NO_OTHER_ROUTE,
        ),
        (tensor.is_quantized, "a quantized tensor", "store int8 values and scales as plain tensors"),
        (tensor.is_nested, "a nested tensor", "pass values and offsets as plain tensors"),
        (tensor.layout is not torch.strided, f"of layout {tensor.layout}", "make it dense in the factory"),
        (tensor.is_meta, "on the meta device, without values", "materialize the module in the factory"),
    )
    return next(((what, hint) for applies, what, hint in checks if applies), None)


def _tensors_of(module: "Module") -> Iterator[tuple[str, "Tensor"]]:
    sources: tuple[Callable[..., Any], ...] = (module.named_parameters, module.named_buffers)
    for listed in sources:
        yield from listed(remove_duplicate=False)


def _spell(name: str, module: "Module") -> str:
    return f"{name or 'the module'} ({type(module).__name__})"


def _refuse(message: str, hint: str, name: str) -> None:
    raise SourceNotExportable(message, hint=hint, details={"region": "", "name": name})
