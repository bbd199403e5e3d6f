"""A function can be read at once. A longer one is split along its steps, or listed here with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION_LINES = 40
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

LONGER = {
    "aot/cli/build_commands.py: _read_model": "its parameters are the options of every command that builds a model",
    "registry/services/lookup.py: search": "it has one parameter for each filter of the API, and passes them on",
}


def sources() -> list[Path]:
    return sorted(path for top in ("aot", "registry", "worker") for path in (ROOT / top).rglob("*.py"))


def functions_inside(node: ast.AST) -> Iterator[FunctionNode]:
    """The functions directly inside, also those in a block or a class of it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield child
        else:
            yield from functions_inside(child)


def lines_of(function: FunctionNode) -> int:
    """From `def` to the end: without the docstring, which is a contract, and functions inside, which count alone."""
    first = function.body[0]
    docstring = [first] if ast.get_docstring(function, clean=False) is not None else []
    not_counted = [*docstring, *functions_inside(function)]
    return _span(function) - sum(map(_span, not_counted))


def _span(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def long_functions() -> dict[str, int]:
    return {
        f"{path.relative_to(ROOT).as_posix()}: {node.name}": lines
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FunctionNode) and (lines := lines_of(node)) > FUNCTION_LINES
    }


def test_no_function_is_longer_than_the_limit_but_those_with_a_reason() -> None:
    assert {name: lines for name, lines in long_functions().items() if name not in LONGER} == {}


def test_every_reason_is_still_needed() -> None:
    assert set(LONGER) <= set(long_functions())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f():\n    a = 1\n    return a\n", 3),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', 2),
        ("def f():\n    def g():\n        return 1\n    return g\n", 2),
        ("def f(\n    a,\n    b,\n):\n    return a\n", 5),
    ],
)
def test_signatures_count_and_docstrings_and_functions_inside_do_not(text: str, lines: int) -> None:
    [node] = ast.parse(text).body
    assert isinstance(node, FunctionNode)
    assert lines_of(node) == lines
