"""Copies a child's standard output or error to a file, up to a cap, and remembers its end."""

import os
import threading
from collections.abc import Callable

CHUNK_BYTES = 64 * 1024


class Budget:
    """Bytes that several streams may write together."""

    def __init__(self, limit: int, on_exceeded: Callable[[], None]) -> None:
        self._left = limit
        self._on_exceeded = on_exceeded
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """How many of `wanted` bytes may still be kept; tells `on_exceeded` when it is not all of them."""
        with self._lock:
            granted = min(wanted, self._left)
            self._left -= granted
        if granted < wanted:
            self._on_exceeded()
        return granted


class Stream:
    """One pipe, read by its own thread until every writer has closed it.

    Raises OSError when `path` cannot be made, or is a link.
    """

    def __init__(self, source: int, *, path: str | None, tail_bytes: int, budget: Budget) -> None:
        self._source = source
        # Whoever can put a link under the name must not have its target emptied and written.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path or os.devnull, flags, 0o600)
        self._tail_bytes = tail_bytes
        self._tail = b""
        self._lost = ""
        self._budget = budget
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout: float) -> str:
        """Wait for the end of the stream, and return its tail as text."""
        self._thread.join(timeout)
        return self._tail.decode(errors="replace") + self._lost

    def _run(self) -> None:
        while chunk := os.read(self._source, CHUNK_BYTES):
            # Beyond the cap the pipe is still emptied: the last words before the kill are the interesting ones.
            self._tail = (self._tail + chunk)[-self._tail_bytes :]
            self._keep(chunk[: self._budget.take(len(chunk))])
        os.close(self._file)

    def _keep(self, chunk: bytes) -> None:
        try:
            while chunk and not self._lost:
                chunk = chunk[os.write(self._file, chunk) :]
        except OSError as error:
            # A full disk must not leave the child blocked on a pipe that nobody empties.
            self._lost = f"\n[the rest was not written to its file: {error}]\n"
