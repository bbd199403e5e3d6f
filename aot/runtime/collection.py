"""Blocks in which no garbage is collected."""

import gc
from threading import Lock


class _NoCollection:
    """A block without garbage collection: freeing a tensor of another stream asks the card for an event, which a
    capture forbids.

    Models may capture at once, in threads: the first one to begin turns it off, the last one to end back on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._blocks += 1

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._was_enabled:
                gc.enable()


no_collection = _NoCollection()
