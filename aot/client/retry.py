"""Trying again: only what may succeed by itself, less and less often, never for long."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aot.errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """`attempts` in all; waits grow from `first_wait_seconds` to `longest_wait_seconds`, half of each random.

    No attempt begins once `budget_seconds` have passed, so a pod knows when it will serve without the registry.
    """

    attempts: int = 5
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 5.0
    budget_seconds: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    def wait_after(self, failures: int, error: Unavailable) -> float:
        """Seconds until the next attempt, which is not sooner than the registry asked for."""
        grown = min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** (failures - 1))
        asked = error.details.get("retry_after_seconds")
        return max(grown * (0.5 + 0.5 * _fraction()), float(asked) if isinstance(asked, int | float) else 0.0)


ONCE = RetryPolicy(attempts=1)


def retried(call: Callable[[], T], policy: RetryPolicy, *, may_retry: Callable[[Unavailable], bool]) -> T:
    """Return what `call` returns; call again after an Unavailable for which `may_retry` holds.

    Raises the last error when the attempts or the budget are used up.
    """
    begun = policy.now()
    failures = 0
    while True:
        try:
            return call()
        except Unavailable as error:
            failures += 1
            wait = policy.wait_after(failures, error)
            used_up = failures >= policy.attempts or policy.now() - begun + wait > policy.budget_seconds
            if used_up or not may_retry(error):
                raise
        policy.sleep(wait)


def _fraction() -> float:
    # `random` is seeded alike in forked processes, which would then all come back at the same moment.
    return int.from_bytes(os.urandom(2), "big") / 65535
