"""Expressions over input sizes: the one small language in which a guard may compute.

`s[input][dim]` is a size; integers, `+ - * // %`, `min max abs`, comparisons, `and or not`. An expression from a
manifest is hostile until it was rebuilt here: parsed, checked node by node, and written anew from validated integers
and the operators of this file. The text itself is never executed.
"""

import ast
import re
from collections.abc import Callable

from msgspec import Struct

from aot.errors import MalformedDocument

_ALPHABET = re.compile(r"[A-Za-z0-9_ ()\[\],.+\-*/%<>=!']*")
_MOST_CHARACTERS = 4000
_MOST_NESTED = 60
_MOST_BITS = 63

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
FUNCTIONS = {"min": min, "max": max, "abs": abs}

# Gives the Python name of size `dim` of input `input`; None where there is no such size.
NameSize = Callable[[int, int], "str | None"]


class Expression(Struct, frozen=True):
    """`source` is Python over the names that were given for sizes. `sizes` are those it reads, in order."""

    source: str
    sizes: tuple[tuple[int, int], ...]
    is_condition: bool


def read_expression(text: str, name_size: NameSize) -> Expression:
    """Return `text` rebuilt. Raises MalformedDocument for anything that is not of the language."""
    rebuilder = _Rebuilder(name_size)
    try:
        source, is_condition = rebuilder.rebuild(parse(text))
    except ValueError as error:
        raise _malformed(text, str(error)) from error
    return Expression(source, tuple(dict.fromkeys(rebuilder.sizes)), is_condition)


def parse(text: str) -> ast.expr:
    """Return the syntax tree of `text`, nothing of it checked yet but its characters and length."""
    if len(text) > _MOST_CHARACTERS or not _ALPHABET.fullmatch(text):
        raise _malformed(text, "is too long or has characters that no expression has")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _malformed(text, "does not parse") from error


def size_term(node: ast.AST) -> tuple[int, int] | None:
    """Return (input, dim) where `node` is `s[input][dim]`."""
    match node:
        case ast.Subscript(
            value=ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=position)),
            slice=ast.Constant(value=dim),
        ) if type(position) is int and type(dim) is int:
            return position, dim
    return None


class _Rebuilder:
    """Writes an expression anew, node by node. Raises ValueError saying what is wrong with it."""

    def __init__(self, name_size: NameSize) -> None:
        self._name_size = name_size
        self._depth = 0
        self.sizes: list[tuple[int, int]] = []

    def rebuild(self, node: ast.expr) -> tuple[str, bool]:
        """Return the source of `node` and whether it is a condition."""
        if self._depth > _MOST_NESTED:
            raise ValueError("is nested too deeply")
        self._depth += 1
        found = self._number(node)
        result = (found, False) if found is not None else (self._condition(node), True)
        self._depth -= 1
        return result

    def _number(self, node: ast.expr) -> str | None:
        if (term := size_term(node)) is not None:
            return self._size(*term)
        match node:
            case ast.Constant(value=value) if type(value) is int and value.bit_length() <= _MOST_BITS:
                return str(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self._wanted(operand)})"
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                return f"({self._wanted(node.left)} {_ARITHMETIC[type(op)]} {self._wanted(node.right)})"
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                if len(args) != 1 if name == "abs" else len(args) < 2:
                    raise ValueError(f"gives {name} {len(args)} value(s)")
                return f"{name}({', '.join(self._wanted(part) for part in args)})"
        return None

    def _condition(self, node: ast.expr) -> str:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(not {self._wanted(operand, condition=True)})"
            case ast.BoolOp(op=op):
                word = " and " if isinstance(op, ast.And) else " or "
                return f"({word.join(self._wanted(part, condition=True) for part in node.values)})"
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                terms = [self._wanted(node.left)]
                for op, part in zip(node.ops, node.comparators, strict=True):
                    terms.append(f"{_COMPARISONS[type(op)]} {self._wanted(part)}")
                return f"({' '.join(terms)})"
        raise ValueError(f"holds {type(node).__name__}, which is not of the language")

    def _wanted(self, node: ast.expr, *, condition: bool = False) -> str:
        source, is_condition = self.rebuild(node)
        if is_condition != condition:
            raise ValueError("computes with a condition" if is_condition else "takes a number for a condition")
        return source

    def _size(self, position: int, dim: int) -> str:
        name = self._name_size(position, dim)
        if name is None:
            raise ValueError(f"reads s[{position}][{dim}], which is no size of these inputs")
        self.sizes.append((position, dim))
        return name


def _malformed(text: str, what: str) -> MalformedDocument:
    return MalformedDocument(
        f"the expression {text[:80]!r} {what}",
        hint="sizes s[input][dim], integers, + - * // %, min, max, abs, comparisons, and, or, not",
    )
