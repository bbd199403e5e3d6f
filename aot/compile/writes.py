"""Which inputs a program writes into, read from its graph.

An export keeps in-place operations, and does not list what they reach. Functionalizing the program would tell, but
traces it again and leaves new assumptions on its sizes; following aliases back from each write does neither.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


def written_placeholders(program: "ExportedProgram") -> frozenset[str]:
    """Return the names of placeholders whose memory an operation of the graph may write.

    Too many rather than too few: an operation that may return its input (`reshape`, `contiguous`) counts as doing so,
    and a nested graph (a `no_grad` block, a branch) that writes one of its operands as writing all of them.
    """
    return _written_in(program.graph_module)


def _written_in(module: "GraphModule") -> frozenset[str]:
    written: set[str] = set()
    for node in module.graph.nodes:
        for operand in _written_operands(node):
            written |= _origins(operand)
    return frozenset(written)


def _written_operands(node: "Node") -> Iterator["Node"]:
    if any(_written_in(graph) for graph in _nested_graphs(node)):
        yield from _nodes(node.args)
    for argument, value in _arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes(value)


def _origins(node: "Node") -> set[str]:
    """Return the placeholders that `node` may be a view of."""
    import operator

    found: set[str] = set()
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if one.op == "placeholder":
            found.add(one.name)
            continue
        if one.target is operator.getitem or _nested_graphs(one):
            sources = list(_nodes(one.args))
        else:
            # A view names what it is a view of by the same alias set; no set, no view.
            aliased = (value for argument, value in _arguments(one) if argument.alias_info is not None)
            sources = [source for value in aliased for source in _nodes(value)]
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    return found


def _nested_graphs(node: "Node") -> list["GraphModule"]:
    """Return the graphs that a higher-order operation runs."""
    from torch.fx import GraphModule

    owner = node.graph.owning_module
    named = [one.target for one in _nodes(node.args) if one.op == "get_attr" and owner is not None]
    found = [getattr(owner, str(name), None) for name in named]
    return [one for one in found if isinstance(one, GraphModule)]


def _arguments(node: "Node") -> Iterator[tuple[Any, Any]]:
    """Yield each declared argument of an operation with its value in this call."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif position < len(node.args):
            yield argument, node.args[position]


def _nodes(value: Any) -> Iterator["Node"]:
    from torch.fx import Node

    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _nodes(one)
