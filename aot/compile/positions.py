"""Positions that a program reads from a tensor, held to the sizes of what they select from.

Eager checks `table[position]`. Export makes a number of a position that is a tensor of one element, by `item`, and a
`select` of the indexing; nothing is known of the number, and Inductor computes an address from it without a check.
One past the end then reads another tensor's memory, silently, and one far away ends the process. So the exported
program asserts what eager would: torch's own assertions of numbers, which generated code raises as an error.
"""

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def assert_positions(program: "ExportedProgram") -> int:
    """Put the assertions of every position that only a run knows into the program, and return how many positions."""
    import torch

    graph, count = program.graph, 0
    for node, position in list(_selections(program)):
        size = node.args[0].meta["val"].shape[node.args[1]]  # type: ignore[union-attr, index]
        if not isinstance(size, int):
            # Inside of the graph a size that is open is asked for; as a Python value it would be the example's.
            with graph.inserting_before(node):
                size = graph.call_function(torch.ops.aten.sym_size.int, node.args[:2])
        count += 1
        with graph.inserting_before(node):
            lowest = -size if isinstance(size, int) else graph.call_function(operator.neg, (size,))
            for compare, bound in ((operator.ge, lowest), (operator.lt, size)):
                holds = graph.call_function(compare, (position, bound))
                words = f"index out of bounds: {position} {'>=' if compare is operator.ge else '<'} {bound}"
                graph.call_function(torch.ops.aten._assert_scalar.default, (holds, words))
    if count:
        program.graph_module.recompile()
    return count


def _selections(program: "ExportedProgram") -> "Iterator[tuple[Node, Any]]":
    import torch
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for node in program.graph.nodes:
        if node.target is torch.ops.aten.select.int:
            position = node.args[2]
            if isinstance(position, torch.fx.Node) and free_unbacked_symbols(position.meta.get("val")):
                yield node, position
