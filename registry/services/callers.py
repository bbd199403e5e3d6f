"""Callers whose token was looked up just now, so that a pod's start asks the database once who calls.

Kept in the memory of one process, and asked for the two requests of a pod's start alone (`registry.api.auth`): every
other request looks its caller up. So a token that is removed gets manifests and links for REMEMBERED_SECONDS more, and
nothing else; one that expires ends at its time.
"""

import time
from collections.abc import Callable
from datetime import datetime

from registry.services.tokens import Principal, hash_of

REMEMBERED_SECONDS = 5.0
MOST_REMEMBERED = 10_000


class Callers:
    """Used by the event loop alone, so without locks. Knows hashes, never secrets; a refusal is not remembered."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._known: dict[str, tuple[Principal, float]] = {}

    def find(self, secret: str) -> Principal | None:
        principal, ends_at = self._known.get(hash_of(secret), (None, 0.0))
        return principal if self.monotonic() < ends_at else None

    def remember(self, secret: str, principal: Principal, *, asked_at: float, now: datetime) -> None:
        """`asked_at`: the monotonic time before the database was asked. `now`: the time that tokens expire by."""
        lives = REMEMBERED_SECONDS
        if principal.expires_at is not None:
            lives = min(lives, (principal.expires_at - now).total_seconds())
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[hash_of(secret)] = principal, asked_at + lives
