"""The first idle moment of a command: graphs were compiled, and for a while nothing more was written to the caches.

A server never exits, so what it compiled has to be written back beside it. Seen from outside, by listing; the command
is not asked, and not slowed down by more than the listing.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from aot.capture.collect import list_paths
from aot.capture.deaf import start_deaf
from aot.capture.entries import graphs_of

OnIdle = Callable[[frozenset[str]], None]
_LONGEST_PAUSE_SECONDS = 5.0
_LOOKS = 4


class IdleWatch:
    """Calls `on_idle` once with the files that are not in `before`, from a thread of its own, until `finish`.

    Idle: there is a new graph, and no file has come or grown for `seconds`. `on_idle` must not raise.
    """

    def __init__(self, directory: Path, *, before: frozenset[str], seconds: float, on_idle: OnIdle) -> None:
        self._directory = directory
        self._before = before
        self._seconds = seconds
        self._on_idle = on_idle
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aot-idle", daemon=True)
        start_deaf(self._thread)

    def finish(self) -> None:
        """Look no more, and wait for an `on_idle` that has begun."""
        self._finished.set()
        self._thread.join()

    def _run(self) -> None:
        seen, since = self._look(), time.monotonic()
        while not self._finished.wait(min(self._seconds / _LOOKS, _LONGEST_PAUSE_SECONDS)):
            found = self._look()
            if found != seen:
                seen, since = found, time.monotonic()
            elif seen and time.monotonic() - since >= self._seconds and graphs_of(seen):
                self._on_idle(frozenset(seen))
                return

    def _look(self) -> dict[str, int]:
        """The new files with their sizes; as many as could be read, which is another answer than the one before."""
        found: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for path in list_paths(self._directory) - self._before:
                found[path] = (self._directory / path).stat().st_size
        return found
