"""Text at the border, values inside: the base of every type that is written as one string."""

from typing import Self


class Text(str):
    """A string that has been parsed. Build one with `parse`, which refuses anything else by name."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value that `text` spells. Raises a family of InvalidInput."""
        raise NotImplementedError(cls.__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"
