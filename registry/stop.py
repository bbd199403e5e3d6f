"""Told to stop: by SIGTERM or Ctrl-C. The first process of a container ignores what it does not handle."""

import contextlib
import signal
import time
from types import FrameType
from typing import Self


def leave(number: int, frame: FrameType | None) -> None:
    """A handler that ends the process here: transactions are rolled back, temporary files go."""
    raise SystemExit(128 + number)


class _Told(Exception):
    pass


class Stop:
    """For a command that works in passes. The first signal ends it between two of them, the second at once."""

    def __init__(self) -> None:
        self.told = False
        self._pausing = False

    def listen(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        return self

    def pause(self, seconds: float) -> bool:
        """Sleep; return False, and at once, when told to stop."""
        # By an exception: Event.set() in a handler would wait for ever for a lock that the code below it holds.
        with contextlib.suppress(_Told):
            self._pausing = True
            try:
                if not self.told:
                    time.sleep(seconds)
            finally:
                self._pausing = False
        return not self.told

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.told = self.told, True
        if self._pausing:
            self._pausing = False
            raise _Told
        if again:
            leave(number, frame)
