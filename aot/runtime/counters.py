"""Counters of one compiled model: exact under threads, and cheap enough for every call. And what they count."""

from itertools import count

from msgspec import Struct

NAMES = ("calls", "compiled", "eager", "guard_misses", "eager_won", "failed", "rebinds")


class Miss(Struct, frozen=True):
    """Why a call has to run eagerly."""

    reason: str
    kind: str  # a counter's name


class Counters:
    """How the calls of a model went. `calls` = `compiled` + `eager`; the others say why a call was eager.

    `itertools.count` advances in one step of the interpreter, where `+= 1` is three and loses counts between threads.
    """

    __slots__ = ("_counts", "compiled", "eager", "eager_won", "failed", "guard_misses", "rebinds")

    def __init__(self) -> None:
        self._counts = {name: count() for name in NAMES if name != "calls"}
        self.compiled = self._counts["compiled"].__next__
        self.eager = self._counts["eager"].__next__
        self.guard_misses = self._counts["guard_misses"].__next__
        self.eager_won = self._counts["eager_won"].__next__
        self.failed = self._counts["failed"].__next__
        self.rebinds = self._counts["rebinds"].__next__

    def read(self) -> dict[str, int]:
        """Return every counter by name."""
        found = {name: _value(counter) for name, counter in self._counts.items()}
        return {"calls": found["compiled"] + found["eager"], **found}


def _value(counter: "count[int]") -> int:
    # The text is the only way to read one without advancing it.
    return int(repr(counter)[len("count(") : -1])
