"""Log lines on their way to the registry: plain text, bounded in number and length."""

import re
from collections import deque
from dataclasses import dataclass

MOST_LINES = 1000  # that wait to be told; the oldest go first when a source floods its log
LINE_CHARACTERS = 2000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Taken:
    """Lines that are about to be told, and how many were dropped before them."""

    lines: tuple[str, ...] = ()
    dropped: int = 0

    @property
    def told(self) -> tuple[str, ...]:
        """The lines as the log gets them: what is missing is said."""
        return (f"[{self.dropped} lines left out]", *self.lines) if self.dropped else self.lines


class Lines:
    """What waits to be told, in order. Not safe between threads."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._dropped = 0

    def add(self, line: str) -> None:
        self._waiting.append(plain(line, LINE_CHARACTERS))
        self._drop()

    def take(self) -> Taken:
        """Return all and keep none."""
        taken = Taken(tuple(self._waiting), self._dropped)
        self._waiting.clear()
        self._dropped = 0
        return taken

    def put_back(self, taken: Taken) -> None:
        """Make them wait again, before what has come since."""
        self._waiting.extendleft(reversed(taken.lines))
        self._dropped += taken.dropped
        self._drop()

    def _drop(self) -> None:
        while len(self._waiting) > MOST_LINES:
            self._waiting.popleft()
            self._dropped += 1


def plain(text: str, most: int) -> str:
    """The first `most` characters without colours, and without what a terminal or a database would act upon.

    Lone surrogates have no UTF-8, NUL has no place in PostgreSQL's texts.
    """
    text = _COLOURS.sub("", text[: 2 * most])[:most]
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
