"""Text at the border, values inside: the base of every type that is written as one string."""

from enum import StrEnum
from typing import Self, TypeVar

from aot.errors import InvalidInput

W = TypeVar("W", bound=StrEnum)


class Text(str):
    """A string that has been parsed. Build one with `parse`, which refuses anything else by name."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value that `text` spells. Raises a family of InvalidInput."""
        raise NotImplementedError(cls.__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def parse_word(text: str, words: type[W], *, of: str) -> W:
    """Return which of the few `words` it is; `of` says what they are, for people. Raises InvalidInput."""
    try:
        return words(text)
    except ValueError as error:
        from difflib import get_close_matches  # a pod's start has no use for it

        near = get_close_matches(text, list(map(str, words)), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "take one of them as it is written here"
        raise InvalidInput(f"wanted {of} {' or '.join(words)}, found {text!r}", hint=hint) from error
