"""Source locations taken out of MLIR text: they hold paths of the builder, and nothing computes with them. Pure.

An operation or an argument ends in ` loc(...)`, and a line of its own gives a location a name: `#loc3 = loc(...)`
(MLIR language reference, "Location" in the builtin dialect). Both are optional to the parser, which then takes the
place in the text itself.
"""

import re

from aot.errors import MalformedDocument

_NAMED = re.compile(r"#loc\d* = loc\(")
_INLINE = " loc("


def strip_locations(text: str) -> str:
    """Return the module without its locations. What stands in string literals is left alone.

    Raises MalformedDocument for a literal or a location without an end, and for a location that is left.
    """
    kept = "\n".join(line for line in text.split("\n") if not _NAMED.match(line))
    pieces, start, at = [], 0, 0
    while at < len(kept):
        if kept[at] == '"':
            at = _after_literal(kept, at)
        elif kept.startswith(_INLINE, at):
            pieces.append(kept[start:at])
            start = at = _after_parenthesis(kept, at + len(_INLINE) - 1)
        elif kept.startswith("#loc", at):
            raise _malformed("refers to a location in a way that is not known")
        else:
            at += 1
    return "".join((*pieces, kept[start:]))


def _after_literal(text: str, at: int) -> int:
    """Return the place behind the string literal that begins at `at`."""
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise _malformed("has a string without an end")
    return end + 1


def _after_parenthesis(text: str, at: int) -> int:
    """Return the place behind the parenthesis that closes the one at `at`."""
    depth = 0
    while at < len(text):
        if text[at] == '"':
            at = _after_literal(text, at)
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at
    raise _malformed("has a location without an end")


def _malformed(finding: str) -> MalformedDocument:
    return MalformedDocument(
        f"the kernel's intermediate form {finding}", hint="report this, with the release of Triton"
    )
