"""One attempt at a build, as the registry sees it: the lease renewed and progress told beside the work."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from aot.client import RegistryClient
from aot.errors import AotError, BuildFinished, Forbidden, LeaseLost, NotFound, Unauthenticated
from aot.schema.report import Phase
from aot.schema.wire.builds import Claim

log = logging.getLogger("worker")

TELL_SECONDS = 0.5
MOST_LINES = 1000  # waiting to be told; the oldest go first when a source floods its log


class Attempt:
    """Renews the lease of `claim` and tells progress from a thread of its own, until the block is left.

    `stop_reason` turns from None to a text when the work must end: cancelled, or the lease lost. The work asks for
    it; nothing is interrupted from here.
    """

    def __init__(self, client: RegistryClient, claim: Claim, *, stopping: threading.Event) -> None:
        self.stop_reason: str | None = None
        self._client = client
        self._claim = claim
        self._stopping = stopping
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._phase: Phase | None = None
        self._step = ""
        self._changed = False
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.build}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._finished.set()
        self._thread.join(timeout=30)

    def should_stop(self) -> str | None:
        """Why the work must end, or None."""
        return self.stop_reason or ("the worker is shutting down" if self._stopping.is_set() else None)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take one event of a child or of the pipeline: `phase`, `step` and `line`, each optional."""
        with self._lock:
            if event.get("phase") in set(Phase):
                self._phase = Phase(event["phase"])
                self._step = str(event.get("step", ""))[:200]
                self._changed = True
            if line := event.get("line"):
                self._lines.append(str(line)[:2000])

    def tell(self) -> None:
        """Send what is new. Raises the client's errors."""
        with self._lock:
            lines, phase, step, changed = tuple(self._lines), self._phase, self._step, self._changed
            self._lines.clear()
            self._changed = False
        if lines or changed:
            self._note(self._client.report_progress(self._claim.build, phase=phase, step=step, lines=lines).stop)

    def _run(self) -> None:
        while not self._finished.wait(TELL_SECONDS):
            try:
                self.tell()
                if time.monotonic() - self._renewed >= self._claim.lease_seconds / 3:
                    self._note(self._client.renew(self._claim.build).stop)
                    self._renewed = time.monotonic()
            except (LeaseLost, BuildFinished, NotFound, Forbidden, Unauthenticated) as error:
                self._note(error.message)
                return
            except AotError as error:
                # The registry is away: the work goes on, and whether the lease was lost is found out later.
                log.warning("registry-away build=%s error=%s", self._claim.build, error.message)

    def _note(self, reason: str | None) -> None:
        if reason and self.stop_reason is None:
            self.stop_reason = reason
