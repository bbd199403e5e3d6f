"""Literals of other people's tables: what is none is refused before a parser sees it."""

import ast
import pprint
from collections.abc import Callable
from typing import NoReturn

import pytest

from aot.capture.literals import MOST_DEPTH, MOST_TOKENS, read_literal
from aot.capture.tables import joined

ROWS = {((1, 8), 0, "inductor"): ("it's", 'a "b"', "é\n\\\t\x00", None, True, -1.5), (None, 1, ""): [1, {2: {3}}]}
UNPARSED: dict[str, Callable[[int], str]] = {
    "comparisons": lambda times: "{1:" + "1<" * times + "1}",
    "conditions": lambda times: "{1:" + "1or " * times + "1}",
    "calls": lambda times: "{1:a" + "()" * times + "}",
    "formatted": lambda times: "{1:" + "f'{a}'" * times + "}",
    "attributes": lambda times: "{1:" + "a." * times + "a}",
    "bytes": lambda times: "{1:" + "b''" * times + "}",
    "statements": lambda times: "1;" * times,
    "exponents": lambda times: "{1:" + "1e9," * times + "}",
    "lines": lambda times: "{1:" + "\\\n" * times + "1}",
    "comments": lambda times: "{}" + "#\n" * times,
    "hidden": lambda times: "{1:'''a','''" + "()" * times + "'''a'''}",
    "hidden twice": lambda times: '{1:"""a","""' + "()" * times + '"""a"""}',
    "escapes": lambda times: "{1:'" + "\\d" * times + "'}",
    "digits": lambda times: "{1:" + "1." + "1" * 40 * times + "}",
}


@pytest.mark.parametrize("write", [repr, lambda rows: pprint.PrettyPrinter(indent=4).pformat(rows)])
def test_what_repr_and_pprint_write_is_read(write: Callable[[object], str]) -> None:
    assert read_literal(write(ROWS)) == ROWS and read_literal(f"{write(ROWS)}\n") == ROWS


@pytest.fixture
def never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_: str) -> NoReturn:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(ast, "literal_eval", parse)


@pytest.mark.usefixtures("never_parsed")
@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("text", UNPARSED.values(), ids=list(UNPARSED))
def test_what_is_no_literal_is_not_parsed(text: Callable[[int], str], times: int) -> None:
    with pytest.raises(ValueError, match=r"no literal|several lines"):
        read_literal(text(times))
    assert joined("vllm/x/vllm_compile_cache.py", *[text(times).encode()] * 2) is None


@pytest.mark.usefixtures("never_parsed")
@pytest.mark.parametrize("many", ["1,", "'' ", "1 ", "1+", "-", "()"])
def test_a_literal_of_too_many_tokens_is_not_parsed(many: str) -> None:
    with pytest.raises(ValueError, match="tokens"):
        read_literal("{1:" + many * MOST_TOKENS + "1}")


def test_brackets_in_each_other_are_counted() -> None:
    assert read_literal("[" * MOST_DEPTH + "]" * MOST_DEPTH) is not None
    assert read_literal("(" + "[]," * 2 * MOST_DEPTH + ")") is not None
    with pytest.raises(ValueError, match="in each other"):
        read_literal("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1))
