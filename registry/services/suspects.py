"""Blobs of which workers got other bytes: hashed here, and taken out as `fsck` does where they are wrong.

A worker's word is a reason to look, and no more. What is found right was damaged on its way. A blob that is missing is
left to `fsck`, which tells one from a store that is not the right one.
"""

import threading
import time
from collections.abc import Callable, Iterable

import structlog

from aot.errors import AotError
from aot.schema.digest import Digest

MOST_WAITING, MOST_A_RELEASE = 32, 8
# What was found right is not read again for every worker behind the same bad line.
KNOWN_SECONDS = 600.0
# Takes a blob out where it is wrong; True then.
Look = Callable[[Digest], bool]
log = structlog.get_logger()


class Suspects:
    """One a process. Looks at one blob after another, in a thread that ends when there are no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Digest, Look] = {}
        self._right: dict[Digest, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, digests: Iterable[Digest], look: Look) -> None:
        """Look at them soon. What is too much is left for the next worker to tell."""
        with self._lock:
            for digest in list(digests)[:MOST_A_RELEASE]:
                if len(self._waiting) < MOST_WAITING and not self._lately_right(digest):
                    self._waiting[digest] = look
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._look_at_all, name="suspects", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> None:
        """Until all are looked at, at most so long."""
        if (thread := self._thread) is not None:
            thread.join(seconds)

    def _lately_right(self, digest: Digest) -> bool:
        self._right = {one: at for one, at in self._right.items() if time.monotonic() - at < KNOWN_SECONDS}
        return digest in self._right

    def _look_at_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                digest = next(iter(self._waiting))
                look = self._waiting.pop(digest)
            try:
                if not look(digest):
                    with self._lock:
                        self._right[digest] = time.monotonic()
            except AotError as error:
                log.warning("suspect-not-read", digest=digest, code=error.code, reason=error.message)
            except Exception:  # the thread must not end with others waiting
                log.exception("suspect-not-read", digest=digest)
