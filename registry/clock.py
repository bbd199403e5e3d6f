"""Where every time of the registry comes from."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from aot.errors import Unavailable

Clock = Callable[[], datetime]
"""Returns the present as an aware UTC time."""
ASK_SECONDS, ASK_AGAIN_SECONDS = 60.0, 5.0
# What is later than it could be, by more than two clocks may differ, was written before the clock was set back. Nobody
# waits as long as the clock was ahead.
CLOCK_MARGIN = timedelta(minutes=5)


def utc_now() -> datetime:
    return datetime.now(UTC)


class SharedClock:
    """The time of something that all replicas share, such as the database: leases and tokens are compared between them.

    It is asked once in ASK_SECONDS and told on by the monotonic clock, so that a host whose clock is wrong, or is set
    while the registry runs, does no harm. Until it has answered once, the host's clock stands in. Safe between threads.
    """

    def __init__(self, ask: Callable[[], datetime], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`ask` raises Unavailable when it cannot tell."""
        self._ask = ask
        self._monotonic = monotonic
        self._known: tuple[datetime, float] | None = None
        self._ask_again_at = float("-inf")

    def __call__(self) -> datetime:
        if self._monotonic() >= self._ask_again_at:
            self._look()
        if self._known is None:
            return utc_now()
        told, at = self._known
        return told + timedelta(seconds=self._monotonic() - at)

    def _look(self) -> None:
        begun = self._monotonic()
        # Set first: others go on with what is known while this one asks.
        self._ask_again_at = begun + ASK_SECONDS
        try:
            told = self._ask()
        except Unavailable:
            self._ask_again_at = begun + ASK_AGAIN_SECONDS
            return
        # Asked between `begun` and now: the middle is nearest.
        self._known = told, (begun + self._monotonic()) / 2


def sortable_id(now: datetime) -> str:
    """Return a new identifier, 28 characters; identifiers of later milliseconds sort after this one."""
    return f"{int(now.timestamp() * 1000):012x}{secrets.token_hex(8)}"


def time_of(identifier: str) -> datetime:
    """The time, in milliseconds, at which `sortable_id` made the identifier."""
    return datetime.fromtimestamp(int(identifier[:12], 16) / 1000, UTC)
