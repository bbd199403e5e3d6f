"""How listings are cut into pages."""

from datetime import datetime

from aot.errors import InvalidInput
from aot.schema.digest import Digest

DEFAULT_LIMIT = 50
MOST = 500


def limit_of(limit: int | None, *, default: int = DEFAULT_LIMIT, most: int = MOST) -> int:
    """The page size asked for. Raises InvalidInput outside of 1..`most`."""
    if limit is None:
        return default
    if not 1 <= limit <= most:
        raise InvalidInput(f"wanted a limit of 1 to {most}, found {limit}", hint="read on with `after`")
    return limit


def cursor_of(at: datetime, digest: Digest) -> str:
    """A position in a listing ordered by time and digest, as text for `after`."""
    return f"{at.isoformat()}~{digest}"


def parse_cursor(text: str) -> tuple[datetime, Digest]:
    """Raises InvalidInput for what `cursor_of` did not write."""
    at, _, digest = text.partition("~")
    try:
        position = datetime.fromisoformat(at)
    except ValueError:
        position = None
    if position is None or position.tzinfo is None:
        raise InvalidInput(f"wanted the `next` of a listing, found {text[:120]!r}", hint="pass it on as it was given")
    return position, Digest.parse(digest)
