"""`.aotignore`: which files of a tree are no part of the source, in the language of gitignore(5).

One file at the root of the tree; the last pattern that matches decides, `!` takes back, and nothing below a directory
that is left out can be taken back.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Left out of every tree, whatever the file says: history, environments, what Python and its tools write, and what
# says how to build: a lock in its own source would make a new source of every build.
ALWAYS = frozenset(
    (
        *(".git", ".hg", ".svn", ".venv", ".tox", ".nox", "__pycache__", ".ipynb_checkpoints", ".DS_Store"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"),
        *("aot.toml", "aot.lock"),
    )
)
ALWAYS_SUFFIXES = (".pyc", ".pyo")

_NEVER = "(?!)"
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": re.escape("!\"#$%&'()*+,-.:;<=>?@[\\]^_`{|}~"),
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


@dataclass(frozen=True)
class Rule:
    """One line: `takes_back` for `!`, `directories` where only those are meant."""

    shape: re.Pattern[str]
    takes_back: bool
    directories: bool


@dataclass(frozen=True)
class Ignore:
    rules: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Ignore":
        return cls(tuple(rule for line in text.splitlines() if (rule := _parse_line(line)) is not None))

    def leaves_out(self, path: str, *, directory: bool) -> bool:
        """True when `path`, relative and with forward slashes, is no part of the source."""
        name = path.rpartition("/")[2]
        if name in ALWAYS or (not directory and name.endswith(ALWAYS_SUFFIXES)):
            return True
        for rule in reversed(self.rules):
            if (directory or not rule.directories) and rule.shape.fullmatch(path):
                return not rule.takes_back
        return False


def _parse_line(line: str) -> Rule | None:
    pattern = _without_trailing_spaces(line)
    if not pattern or pattern.startswith("#"):
        return None
    takes_back = pattern.startswith("!")
    pattern = pattern.removeprefix("!")
    directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    shape = _shape(pattern if anchored else f"**/{pattern}")
    return Rule(re.compile(shape, re.DOTALL), takes_back, directories)


def _without_trailing_spaces(line: str) -> str:
    """A backslash keeps the space behind it."""
    stripped = line.rstrip(" ")
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if backslashes % 2 and len(stripped) < len(line) else stripped


def _shape(pattern: str) -> str:
    """Return the regular expression for a pattern that is matched against the whole path."""
    parts = pattern.split("/")
    shapes = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if len(part) > 1 and not part.strip("*"):
            # Two stars or more: any number of directories; at the end, everything inside.
            shapes.append(".+" if last else "(?:.+/)?")
        else:
            shapes.append("".join(_part(part)) + ("" if last else "/"))
    return "".join(shapes)


def _part(part: str) -> Iterator[str]:
    """Yield the shapes of one part's characters. What is cut off (`[a`, a last backslash) matches nothing."""
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            position += len(part) - position - len(part[position:].lstrip("*"))
            yield "[^/]*"
        elif character == "?":
            yield "[^/]"
        elif character == "[":
            shape, position = _bracket(part, position)
            yield shape
        elif character == "\\":
            yield re.escape(part[position]) if position < len(part) else _NEVER
            position += 1
        else:
            yield re.escape(character)


def _bracket(part: str, position: int) -> tuple[str, int]:
    """Return the shape of a bracket expression whose `[` is before `position`, and the position after its `]`."""
    negated = part[position : position + 1] in ("!", "^")
    position += negated
    members: list[str] = []
    first = True
    while position < len(part):
        character = part[position]
        if character == "]" and not first:
            inner = "".join(members)
            return f"(?!/)[{'^' if negated else ''}{inner}]", position + 1
        first = False
        if named := re.compile(r"\[:([a-z]+):\]").match(part, position):
            members.append(_CLASSES.get(named[1], ""))
            position = named.end()
            continue
        low, position = _bracket_character(part, position)
        high = low
        if part[position : position + 1] == "-" and part[position + 1 : position + 2] not in ("", "]"):
            high, position = _bracket_character(part, position + 1)
        if low is None or high is None:
            return _NEVER, len(part)
        if low <= high:
            members.append(f"{re.escape(low)}-{re.escape(high)}")
    return _NEVER, len(part)


def _bracket_character(part: str, position: int) -> tuple[str | None, int]:
    if part[position] != "\\":
        return part[position], position + 1
    return (part[position + 1], position + 2) if position + 1 < len(part) else (None, position + 1)
