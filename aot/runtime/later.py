"""What a load leaves to be done some seconds after it, so that it is not in the way of the first output.

A process that ends sooner does at its end what must not be lost, for no longer than EXIT_SECONDS.
"""

import atexit
import logging
import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

log = logging.getLogger("aot")
LATER_SECONDS = 5.0
# A registry that does not answer must not keep a process that has done its work.
EXIT_SECONDS = 1.0


class Task(Struct, frozen=True):
    """`at_exit`: it is done also where the process ends first; else it is left to the next process."""

    run: Callable[[], None]
    at_exit: bool = False


def run_later(tasks: Sequence[Task]) -> None:
    """Run `tasks` in their order LATER_SECONDS from now, in a thread that keeps no process."""
    _Later(tasks).start()


class _Later(threading.Thread):
    def __init__(self, tasks: Sequence[Task]) -> None:
        # A thread from the start, because none can be started once the interpreter ends.
        super().__init__(name="aot-later", daemon=True)
        self._tasks = tasks
        self._ending = threading.Event()

    def start(self) -> None:
        atexit.register(self._at_exit)
        super().start()

    def run(self) -> None:
        ending = self._ending.wait(LATER_SECONDS)
        try:
            for task in self._tasks:
                if task.at_exit or not ending:
                    _run(task)
        finally:
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._ending.set()
        self.join(EXIT_SECONDS)


def _run(task: Task) -> None:
    try:
        task.run()
    except Exception:  # a full disk in one task must not lose the next one
        log.exception("what a load left to be done failed")
