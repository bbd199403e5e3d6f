"""When bundles were last asked for by digest. That is how the registry learns what locks pin.

A lock lies in somebody's repository; the registry sees its use: a resolve, a find or links name the digest, and every
process that loads a bundle sends a receipt. Such uses are kept in memory and written together once a while, so that a
pod's start waits for no write. What a crash forgets is at most that while, and retention counts in days.
"""

import threading
from collections.abc import Iterable
from datetime import datetime

import structlog

from aot.errors import Unavailable
from aot.schema.digest import Digest
from registry.db import retention as rows
from registry.db.session import Sessions

FLUSH_SECONDS = 30.0
MOST_KEPT = 10_000
log = structlog.get_logger()


class Uses:
    """Notes uses from any thread; `flush` writes them."""

    def __init__(self) -> None:
        self._noted: dict[Digest, datetime] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def note(self, bundles: Iterable[Digest], *, now: datetime) -> None:
        """Remember; beyond MOST_KEPT bundles the rest is left out, and noted at its next use."""
        with self._lock:
            for bundle in bundles:
                if bundle in self._noted or len(self._noted) < MOST_KEPT:
                    self._noted[bundle] = now

    def flush(self, sessions: Sessions) -> int:
        """Write what was noted, and return how many bundles that were. Raises StorageUnavailable; nothing is lost."""
        with self._lock:
            noted, self._noted = self._noted, {}
        if not noted:
            return 0
        try:
            with sessions.transaction() as session:
                for start in range(0, len(noted), 500):
                    some = sorted(noted)[start : start + 500]
                    rows.mark_used(some, now=max(noted[digest] for digest in some), session=session)
        except Unavailable:
            with self._lock:
                self._noted = noted | self._noted
            raise
        return len(noted)

    def start(self, sessions: Sessions) -> None:
        """Flush once a while, in a thread of its own, until `stop`."""
        self._stopped.clear()
        threading.Thread(target=self._run, args=(sessions,), name="uses", daemon=True).start()

    def stop(self, sessions: Sessions) -> None:
        self._stopped.set()
        self._flush_or_log(sessions)

    def _run(self, sessions: Sessions) -> None:
        while not self._stopped.wait(FLUSH_SECONDS):
            self._flush_or_log(sessions)

    def _flush_or_log(self, sessions: Sessions) -> None:
        try:
            self.flush(sessions)
        except Unavailable as error:
            log.warning("uses-not-written", code=error.code, reason=error.message)
