"""Literals of Python that other people wrote: read only where they are brackets, numbers, strings and three names.

`ast.literal_eval` evaluates nothing, but first it parses whatever it is given as an expression: comparisons, calls and
formatted strings take up to 450 bytes a byte before they are refused. So what is no literal is not parsed at all, and
what is has few tokens and few brackets in each other: a parser's memory goes with both.
"""

import ast
import re

MOST_TOKENS = 400_000
MOST_DEPTH = 32  # brackets in each other

# One token. A string may have the escapes that `repr` writes: any other makes the parser warn.
_TOKEN = re.compile(
    r"""[ \t\n]*+(?:
        (?P<opens>[(\[{]) | (?P<closes>[)\]}]) | [,:+-] | None | True | False
        | [0-9][0-9_.]{0,39}(?![0-9_.])
        | '[^'\\\n\r]*+(?:\\[\\'"nrtxuU][^'\\\n\r]*+)*+'
        | "[^"\\\n\r]*+(?:\\[\\'"nrtxuU][^"\\\n\r]*+)*+"
    )""",
    re.VERBOSE,
)
_SEVERAL_LINES = ("'''", '"""')


def read_literal(text: str) -> object:
    """Return the value of a literal. Raises ValueError or SyntaxError for everything else, and for too much of it."""
    _require_literal(text.rstrip(" \t\n"))
    return ast.literal_eval(text)


def _require_literal(text: str) -> None:
    if any(quotes in text for quotes in _SEVERAL_LINES):  # ends elsewhere than a string of one line
        raise ValueError("a string of several lines is none that repr writes")
    place, depth, count = 0, 0, 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"{text[place : place + 20]!r} is of no literal")
        place, count = token.end(), count + 1
        depth += (token.lastgroup == "opens") - (token.lastgroup == "closes")
        if count > MOST_TOKENS or depth > MOST_DEPTH:
            raise ValueError(f"more than {MOST_TOKENS} tokens, or more than {MOST_DEPTH} brackets in each other")
