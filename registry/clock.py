"""Where every time of the registry comes from."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the present as an aware UTC time."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def sortable_id(now: datetime) -> str:
    """Return a new identifier, 28 characters; identifiers of later milliseconds sort after this one."""
    return f"{int(now.timestamp() * 1000):012x}{secrets.token_hex(8)}"
