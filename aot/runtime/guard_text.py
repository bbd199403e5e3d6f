"""What to say of an input guard that does not hold: which input, which condition, what was found.

Off the fast path: called once a guard has failed, with the tensors of that call.
"""

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aot.runtime.expression import parse, read_expression, size_term
from aot.schema.guard import InputGuard

if TYPE_CHECKING:
    from torch import Tensor


def explain_miss(guard: InputGuard, tensors: "Sequence[Tensor]", paths: Sequence[str], *, device: str) -> str:
    """Return why `guard` does not hold for `tensors`; `device` is where the weights are ("cpu", "cuda:1")."""
    match guard.kind:
        case "no-grad":
            return _explain_grad(tensors, paths)
        case "no-autocast":
            return "autocast is on; the program was compiled without it"
        case "expression":
            return f"wanted {spell(guard.value or '', paths)}{_found(guard.value or '', tensors)}"
    assert guard.input is not None
    tensor, path = tensors[guard.input], paths[guard.input]
    match guard.kind:
        case "type":
            return f"{path}: a {type(tensor).__name__}, wanted a plain tensor"
        case "device":
            return _explain_device(guard, tensor, path, device)
        case "dtype":
            return f"{path}: dtype {_plain(tensor.dtype)}, wanted {guard.value}"
        case "rank":
            return f"{path}: {tensor.dim()} dimension(s), wanted {guard.low}"
        case "stride":
            wanted = ", ".join(spell(str(stride), paths) for stride in guard.strides or ())
            return f"{path}: strides {tuple(tensor.stride())} at sizes {tuple(tensor.shape)}, wanted ({wanted})"
        case "apart":
            return f"{path}: shares memory with another input, and the program writes into it"
    assert guard.dim is not None
    return f"{path}: size {tensor.shape[guard.dim]} in dimension {guard.dim}, wanted {_wanted(guard, tensors, paths)}"


def spell(expression: str, paths: Sequence[str]) -> str:
    """Return an expression over `s[i][d]` with the inputs' own paths."""

    class Spell(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            term = size_term(node)
            return node if term is None else ast.Name(id=f"{paths[term[0]]}.size({term[1]})")

    return ast.unparse(Spell().visit(parse(expression)))


def _wanted(guard: InputGuard, tensors: "Sequence[Tensor]", paths: Sequence[str]) -> str:
    match guard.kind:
        case "range" if guard.high is None:
            return f"at least {guard.low}"
        case "range":
            return f"{guard.low} to {guard.high}"
        case "divisible":
            return f"a multiple of {guard.low}"
        case "equal":
            assert guard.other is not None
            position, dim = guard.other
            return f"{tensors[position].shape[dim]} as in dimension {dim} of {paths[position]}"
    return str(guard.low)


def _explain_device(guard: InputGuard, tensor: "Tensor", path: str, device: str) -> str:
    import torch

    home = torch.device(device)
    at_home = guard.value == home.type
    if tensor.device.type != guard.value or (at_home and (tensor.device.index or 0) != (home.index or 0)):
        # Of several cards, the one that holds the weights.
        where = f"{device}, where the weights are" if at_home and home.type != "cpu" else guard.value
        return f"{path}: on {tensor.device}, wanted {where}"
    if str(tensor.layout) != "torch.strided":
        return f"{path}: layout {_plain(tensor.layout)}, wanted strided"
    # Conjugated, negated, batched by vmap, wrapped by grad: the memory is not the value.
    keys = str(torch._C._dispatch_keys(tensor)).removeprefix("DispatchKeySet")
    return f"{path}: on {tensor.device} with dispatch keys {keys}, wanted plain memory there"


def _explain_grad(tensors: "Sequence[Tensor]", paths: Sequence[str]) -> str:
    requiring = [path for tensor, path in zip(tensors, paths, strict=True) if tensor.requires_grad]
    who = ", ".join(requiring) or "the weights"
    return f"gradients are being recorded for {who}; compiled code computes none (use torch.no_grad())"


def _found(expression: str, tensors: "Sequence[Tensor]") -> str:
    sizes = read_expression(expression, lambda position, dim: "size").sizes
    values = [str(tensors[position].shape[dim]) for position, dim in sizes]
    return f", found {', '.join(values)}" if values else ""


def _plain(value: object) -> str:
    return str(value).removeprefix("torch.")
