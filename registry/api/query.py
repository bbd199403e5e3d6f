"""Values of query parameters: text in the URL, types inside."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from aot.errors import InvalidInput
from aot.schema.text import Text

T = TypeVar("T", bound=Text)
E = TypeVar("E", bound=StrEnum)


def text(value: str | None, kind: type[T]) -> T | None:
    """None and the empty string ask nothing. Raises what `kind.parse` raises."""
    return kind.parse(value) if value else None


def choice(value: str | None, kind: type[E]) -> E | None:
    """Raises InvalidInput naming the choices."""
    if not value:
        return None
    choices: Callable[[str], E] = kind
    try:
        return choices(value)
    except ValueError:
        raise InvalidInput(
            f"wanted one of {', '.join(kind)}, found {value[:80]!r}",
            hint="spell it as the API's description does",
        ) from None
