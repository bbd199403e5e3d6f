"""Fingerprints of exported programs, and what a live module must share with one.

Such a program comes without its module: of it, its graph, the dotted names of all its modules, the classes of those
that were called, and the values of its lifted constants are known. Not known are code and plain attributes, so a live
module that shares all of this is tried as well, at its first call (aot.runtime.trial). Factors:

    program              the stripped file
    graph                its operations, and those of the graphs inside (branches, loops): equal for the graph itself,
                         as torch.export gives it back
    module:<where>       classes by dotted name, null where a module was not called; numbers become `*`
    constants:<name>     values of tensors that were plain attributes, or literals of the code

A program recorded by 0.1.0 has no factors: names and forms of its tensors are all that is compared.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aot.keys import fingerprint_of
from aot.runtime.code import full_name, is_named_only
from aot.runtime.values import digest_tensor
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.factor import Factor, Fingerprint

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule
    from torch.nn import Module

PROGRAM, GRAPH, MODULE, CONSTANTS = "program", "graph", "module:", "constants:"
# What torch names tensors that no attribute holds: literals of the code.
LITERAL = "lifted_tensor_"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_MOST_REASONS = 12


def fingerprint_program(
    program: Digest, *, graph: "GraphModule", classes: Mapping[str, str | None], constants: "Mapping[str, Tensor]"
) -> Fingerprint:
    """The fingerprint of an exported program.

    `program`: digest of the stripped file. `classes`: the class of every module by dotted name, None where it is not
    known. `constants`: values of the lifted constants, by name.
    """
    return fingerprint_of(
        (
            Factor.of(PROGRAM, program),
            Factor.of(GRAPH, _digest_graph(graph)),
            *(_module_factor(where, known) for where, known in sorted(_grouped(classes).items())),
            *(Factor.of(f"{CONSTANTS}{name}", digest_tensor(value)) for name, value in sorted(constants.items())),
        )
    )


def explain_program(recorded: Fingerprint, module: "Module") -> tuple[str, ...]:
    """Return why `module` cannot be the module that was exported; empty where nothing known speaks against it."""
    from torch.fx import GraphModule

    factors = {factor.name: factor for factor in recorded.factors}
    if isinstance(module, GraphModule):
        same = Factor.of(GRAPH, _digest_graph(module)) == factors[GRAPH]
        if not same:
            return ("the live module is a graph, and not the one that was compiled",)
        return tuple(_explain_constants(factors, module))
    known = {name: factor for name, factor in factors.items() if name.startswith(MODULE)}
    attributes = {name: one for name, one in factors.items() if LITERAL not in name}
    reasons = [*_explain_modules(known, module), *_explain_constants(attributes, module)]
    more = f"and {len(reasons) - _MOST_REASONS} more part(s) differ"
    return tuple(reasons if len(reasons) <= _MOST_REASONS else [*reasons[:_MOST_REASONS], more])


def is_the_graph(recorded: Fingerprint, module: "Module") -> bool:
    """Whether `module` is the compiled graph itself, of which everything is known."""
    from torch.fx import GraphModule

    return isinstance(module, GraphModule) and not explain_program(recorded, module)


def _explain_modules(factors: Mapping[str, Factor], module: "Module") -> Iterator[str]:
    live = {name: type(one) for name, one in module.named_modules(remove_duplicate=False)}
    seen: set[str] = set()
    for factor in factors.values():
        recorded: dict[str, str | None] = json.loads(factor.text)
        seen |= recorded.keys()
        for where, kind in recorded.items():
            place = f"module {where}" if where else "the module itself"
            if where not in live:
                yield f"{place} is gone: {kind or 'of a class that was not recorded'}"
            elif kind is not None and not _is_same_class(kind, live[where]):
                yield f"{place} was {kind}, is {full_name(live[where])}"
    for where in sorted(live.keys() - seen):
        yield f"module {where} was not there: {full_name(live[where])}"


def _explain_constants(factors: Mapping[str, Factor], module: "Module") -> Iterator[str]:
    from torch import Tensor

    for name, factor in factors.items():
        if not name.startswith(CONSTANTS):
            continue
        where = name.removeprefix(CONSTANTS)
        value = _attribute(module, where)
        if not isinstance(value, Tensor):
            yield f"the tensor {where}, which the program holds as a constant, is no tensor of the live module"
        elif Factor.of(name, digest_tensor(value)) != factor:
            yield f"the tensor {where}, which the program holds as a constant, has other values in the live module"


def _is_same_class(recorded: str, live: type) -> bool:
    # As everywhere in fingerprints: by the qualified name alone, so that the file's own name is none of it.
    named = is_named_only(live.__module__)
    return recorded == full_name(live) or (not named and recorded.endswith(f".{live.__qualname__}"))


def _attribute(module: "Module", path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _grouped(classes: Mapping[str, str | None]) -> dict[str, dict[str, str | None]]:
    groups: dict[str, dict[str, str | None]] = defaultdict(dict)
    for where, kind in classes.items():
        groups[_NUMBER.sub("*", where)][where] = kind
    return groups


def _module_factor(where: str, known: Mapping[str, str | None]) -> Factor:
    # Not `Factor.of`, which cuts its text: the live module is compared with what the text says.
    content = encode(dict(known))
    return Factor(name=f"{MODULE}{where}", digest=Digest.of(content), text=content.decode())


def _digest_graph(graph: "GraphModule") -> Digest:
    """The operations in order, with their arguments; checks of inputs, which torch adds and leaves out, apart.

    The bodies of operators that take functions (the branches of a `cond`) are graphs of their own, by attribute: an
    operation that names one has that one's digest too.
    """
    nodes = [node for node in graph.graph.nodes if not _is_check(node)]
    numbers = {node: f"%{number}" for number, node in enumerate(nodes)}
    told = [
        [
            node.op,
            str(node.target),
            str(_as_saved(node.args, numbers)),
            str(_as_saved(node.kwargs, numbers)),
            *_digest_body(graph, node),
        ]
        for node in nodes
    ]
    return Digest.of(encode(told))


def _as_saved(argument: Any, numbers: Mapping[Any, str]) -> Any:
    """What a program keeps when it is saved and loaded: nodes by position, not by name, and lists for tuples."""
    from torch.fx import Node

    match argument:
        case Node():
            return numbers[argument]
        case list() | tuple():
            return [_as_saved(one, numbers) for one in argument]
        case dict():
            return {name: _as_saved(one, numbers) for name, one in argument.items()}
    return argument


def _digest_body(graph: "GraphModule", node: Any) -> Iterator[Digest]:
    from torch.fx import GraphModule

    if node.op in ("get_attr", "call_module"):
        body = _attribute(graph, node.target)
        if isinstance(body, GraphModule):
            yield _digest_graph(body)


def _is_check(node: Any) -> bool:
    return node.op == "call_module" and str(node.target).startswith("_guards")
