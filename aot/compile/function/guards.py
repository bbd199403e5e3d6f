"""Dynamo's guards: which travel with a function and are checked at each call, and how they read.

Three kinds stay behind, each because something else holds their condition for sure:

* of parameters and buffers: `aot.runtime.binding` compares them whenever the module's tensors are others;
* the state of torch (`GLOBAL_STATE`): grad mode and autocast are input guards, default dtype and determinism host
  guards; the number of threads, which is in it as well, changes nothing in code that adapts to it, and would tie an
  artifact to pods of the builder's size;
* of code by identity, which no other process has: the fingerprint holds the functions and classes that the program
  reaches, and torch's release the code of torch. Of a plain function that neither holds, as one in a dictionary or of
  a package's module, the content is a guard of ours (`aot.runtime.code_guard`); any other such identity is refused.

Values of globals travel: no fingerprint holds what a dictionary, an object or another module contains.
"""

import enum
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from aot.errors import SourceNotExportable
from aot.runtime.code import functions_of, is_named_only
from aot.runtime.code_guard import content_guard
from aot.schema.guard import ProgramGuard

_OF_WEIGHTS = re.compile(r"\._(?:parameters|buffers)\['[^']+'\]$")
_OF_STATE = ("GLOBAL_STATE", "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "DEFAULT_DEVICE")
_IDENTITY = re.compile(r", \d{6,}(?=[),])")
_MOST_NAMES = 8
_MARKS = "_dynamo_"  # whether a caller has marked a size as dynamic: says nothing of the value


class GuardLog:
    """Decides on each of Dynamo's guards, and keeps how it decided.

    `held` are identities of functions, code objects and classes whose content the fingerprint holds.
    """

    def __init__(self, held: Collection[int] = ()) -> None:
        self._held = frozenset(held)
        self._entries: list[Any] = []
        self._refused: list[str] = []
        self._contents: list[ProgramGuard] = []
        self.elsewhere: Counter[str] = Counter()

    def keep(self, entries: Sequence[Any]) -> list[bool]:
        """Dynamo's `guard_filter_fn`: which guards are saved."""
        self._entries, self._refused, self._contents, self.elsewhere = [], [], [], Counter()
        return [self._decide(entry) for entry in entries]

    def _decide(self, entry: Any) -> bool:
        where = self._held_elsewhere(entry)
        if where:
            self.elsewhere[f"{entry.guard_type} by {where}"] += 1
        else:
            self._entries.append(entry)
        return not where

    def _held_elsewhere(self, entry: Any) -> str:
        if entry.guard_type == "TENSOR_MATCH" and _OF_WEIGHTS.search(_source_of(entry)):
            return "binding"
        if entry.guard_type in _OF_STATE:
            return "the process"
        if not _is_by_identity(entry):
            return ""
        if not entry.is_global or (entry.has_value and self._holds(entry.value)):
            return "the fingerprint"
        guard = content_guard(_source_of(entry), entry.value) if entry.has_value else None
        if guard is None:
            self._refused.append(f"{_source_of(entry)} ({entry.guard_type}, {_kind_of(entry)})")
        else:
            self._contents.append(guard)
        return "its content"

    def _holds(self, value: Any) -> bool:
        """Whether what a global refers to can be no other without another fingerprint or another torch."""
        if isinstance(value, ModuleType):
            return True  # what is read of it has guards of its own
        if isinstance(value, enum.Enum):
            return id(type(value)) in self._held
        if isinstance(value, CodeType):
            return id(value) in self._held
        return all(id(one) in self._held or _is_versioned(one) for one in functions_of(value) or (value,))

    def require_saved(self) -> None:
        """Raises SourceNotExportable naming guards that neither travel nor are held by anything else."""
        if self._refused:
            raise SourceNotExportable(
                f"a guard of the program cannot be saved: the identity of {', '.join(self._refused[:_MOST_NAMES])}",
                hint="name it by a global of the module that uses it; a function that holds objects in its defaults or "
                "closure, an object that is called and a class are told apart by nothing else",
                details={"region": "", "guards": self._refused[:_MOST_NAMES]},
            )

    def globals(self) -> tuple[str, ...]:
        """Return where the guards on values of globals that travel come from."""
        return tuple(dict.fromkeys(_source_of(entry) for entry in self._entries if entry.is_global))

    def describe(self, parts: Iterable[str]) -> tuple[ProgramGuard, ...]:
        """Return the guards that travel, each once. `parts` are the conditions as Dynamo has compiled them."""
        tensors = {source: part for part in parts if (source := _tensor_of(part))}
        found = (
            ProgramGuard(kind=entry.guard_type, source=_source_of(entry), condition=condition)
            for entry in self._entries
            for condition in _conditions(entry, tensors)
        )
        return tuple(dict.fromkeys((*found, *self._contents)))


def _is_by_identity(entry: Any) -> bool:
    from torch._dynamo.guards import CheckFunctionManager

    kinds = {*CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES, "BUILTIN_MATCH"}
    return bool(kinds & {entry.guard_type, *entry.derived_guard_types})


def _is_versioned(thing: Any) -> bool:
    return callable(thing) and is_named_only(getattr(thing, "__module__", None) or type(thing).__module__)


def _kind_of(entry: Any) -> str:
    return f"a {type(entry.value).__name__}" if entry.has_value else "no value"


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
