"""The language of guards: what it computes, and that nothing else gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import MalformedDocument
from aot.runtime.expression import FUNCTIONS, read_expression

SIZES = ((7, 4), (12,))


def name(position: int, dim: int) -> str | None:
    return f"s{position}_{dim}" if 0 <= position < 2 and 0 <= dim < len(SIZES[position]) else None


def value_of(text: str) -> object:
    expression = read_expression(text, name)
    scope = {f"s{i}_{d}": size for i, sizes in enumerate(SIZES) for d, size in enumerate(sizes)}
    return eval(expression.source, {"__builtins__": {}, **FUNCTIONS}, scope)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s[0][0] * 2 - 1", 13),
        ("-s[0][0] // 2", -4),
        ("-7 % s[0][1]", 1),
        ("max(1, s[0][0] // 2, s[1][0]) + min(2, 3) + abs(-4)", 18),
        ("1 < s[0][1] <= 4 == 4", True),
        ("not s[0][0] == 7 or s[0][1] != 4 and 1 > 2", False),
        ("2 * (s[0][0] + (s[1][0]))", 38),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_it_computes_as_python_does(text: str, value: object) -> None:
    assert value_of(text) == value


def test_it_tells_what_it_reads_and_whether_it_is_a_condition() -> None:
    expression = read_expression("s[1][0] == s[0][1] + s[1][0]", name)
    assert (expression.sizes, expression.is_condition) == (((1, 0), (0, 1)), True)
    assert not read_expression("s[1][0]", name).is_condition


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "s.__class__",
        "s[0][0].__class__",
        "s[0]",
        "s",
        "s[0][0][0]",
        "s[2][0]",
        "s[0][-1]",
        "s[True][0]",
        "s[0][s[0][0]]",
        "t[0][0]",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 1)()",
        "[x for x in s]",
        "f'{s}'",
        "'a' * 3",
        "1.5",
        "True",
        "None",
        "1 if s[0][0] else 2",
        "s[0][0] ** s[0][0] ** 99",
        "9" * 400 + " * 2",
        "18446744073709551616",
        "1 << 99999999",
        "s[0][0] / 2",
        "s[0][0] @ 2",
        "~1",
        "+1",
        "s[0][0] and 1",
        "not s[0][0]",
        "(1 == 1) + 1",
        "max(1)",
        "max(1, 2, key=abs)",
        "max(*s[0])",
        "abs(1, 2)",
        "print(1, 2)",
        "len(s)",
        "s[0][0] is 7",
        "s[0][0] in s",
        "(x := 3)",
        "yield",
        "await s",
        "1; 2",
        "1\n2",
        "1\x00",
        "s[0][0] \u00d7 2",
        "",
        "   ",
        "(" * 1500 + "1" + ")" * 1500,
        "-" * 3000 + "1",
        "not " * 900 + "1 == 1",
        "1+" * 3000 + "1",
        "1+" * 100 + "1",
    ],
)
def test_what_is_not_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(MalformedDocument):
        read_expression(text, name)


@given(st.text(alphabet="s[]01()+-*/%<>=! andortmixb,._'", max_size=60))
def test_any_text_is_rebuilt_harmlessly_or_refused(text: str) -> None:
    try:
        expression = read_expression(text, name)
    except MalformedDocument:
        return
    try:
        result = eval(expression.source, {"__builtins__": {}, **FUNCTIONS}, dict.fromkeys(("s0_0", "s0_1", "s1_0"), 5))
    except ZeroDivisionError:
        return
    assert type(result) is (bool if expression.is_condition else int)
