"""Dynamo's guards: which travel with a function and are checked at each call, and how they read.

Three kinds stay behind, each because something else holds their condition for sure:

* of parameters and buffers: `aot.runtime.binding` compares them whenever the module's tensors are others;
* the state of torch (`GLOBAL_STATE`): grad mode and autocast are input guards, default dtype and determinism host
  guards; the number of threads, which is in it as well, changes nothing in code that adapts to it, and would tie an
  artifact to pods of the builder's size;
* of globals and of objects by identity, which no other process has: a module's fingerprint holds what code reaches by
  global name, plain values included.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aot.schema.guard import ProgramGuard

_OF_WEIGHTS = re.compile(r"\._(?:parameters|buffers)\['[^']+'\]$")
_OF_STATE = ("GLOBAL_STATE", "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "DEFAULT_DEVICE")
_IDENTITY = re.compile(r", \d{6,}(?=[),])")
_MARKS = "_dynamo_"  # whether a caller has marked a size as dynamic: says nothing of the value


class GuardLog:
    """Decides on each of Dynamo's guards, and keeps how it decided."""

    def __init__(self) -> None:
        self._entries: list[Any] = []
        self.elsewhere: Counter[str] = Counter()

    def keep(self, entries: Sequence[Any]) -> list[bool]:
        """Dynamo's `guard_filter_fn`: which guards are saved."""
        self._entries, self.elsewhere = [], Counter()
        return [self._decide(entry) for entry in entries]

    def _decide(self, entry: Any) -> bool:
        where = _held_elsewhere(entry)
        if where:
            self.elsewhere[f"{entry.guard_type} by {where}"] += 1
        else:
            self._entries.append(entry)
        return not where

    def describe(self, parts: Iterable[str]) -> tuple[ProgramGuard, ...]:
        """Return the guards that travel, each once. `parts` are the conditions as Dynamo has compiled them."""
        tensors = {source: part for part in parts if (source := _tensor_of(part))}
        found = (
            ProgramGuard(kind=entry.guard_type, source=_source_of(entry), condition=condition)
            for entry in self._entries
            for condition in _conditions(entry, tensors)
        )
        return tuple(dict.fromkeys(found))


def _held_elsewhere(entry: Any) -> str:
    from torch._dynamo.guards import CheckFunctionManager

    by_identity = CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    if entry.guard_type == "TENSOR_MATCH" and _OF_WEIGHTS.search(_source_of(entry)):
        return "binding"
    if entry.guard_type in _OF_STATE:
        return "the process"
    if entry.is_global or entry.guard_type in by_identity or set(by_identity) & set(entry.derived_guard_types):
        return "the fingerprint"
    return ""


def _source_of(entry: Any) -> str:
    return str(getattr(entry.orig_guard, "name", "") or entry.name)


def _conditions(entry: Any, tensors: dict[str, str]) -> Iterator[str]:
    source = _source_of(entry)
    if entry.guard_type == "TENSOR_MATCH" and source in tensors:
        yield tensors[source]
        return
    found = [_plain(part) for part in entry.orig_guard.code_list or () if _MARKS not in part]
    yield from dict.fromkeys(found) if found else ("",)


def _tensor_of(part: str) -> str:
    """Return the source that a condition of Dynamo's checks as a tensor; "" for other conditions."""
    head, _, rest = part.partition("check_tensor(")
    return rest.partition(", ")[0] if rest and not head.strip() else ""


def _plain(part: str) -> str:
    """Return a condition without addresses of this process and without the line of source."""
    return _IDENTITY.sub("", part.partition("  #")[0].strip())
