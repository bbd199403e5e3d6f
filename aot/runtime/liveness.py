"""Why the live module is not, or no longer, the program that was compiled, in words.

At load, when two fingerprints differ: each differing factor becomes one sentence, as precise as what the manifest
kept of it allows. A model that differs runs eagerly, so these sentences are what its owner sees. At each call:
whether hooks have appeared or gone since.
"""

import json
from collections.abc import Iterator, Mapping, Set
from threading import RLock
from typing import TYPE_CHECKING, Any

from aot.keys import changes_between
from aot.runtime.code import name_of
from aot.runtime.fingerprint import is_capturing, is_idle, parametrized
from aot.schema.factor import FactorChange, Fingerprint

if TYPE_CHECKING:
    from torch.nn import Module

_MOST_KEYS = 4
_MOST_CHARACTERS = 120
_MOST_REASONS = 12
_BEYOND = "differ beyond what was recorded in words"
# Under another of these, nothing can be said of code.
_WHOLE = "bytecode"


def explain_difference(recorded: Fingerprint, live: Fingerprint) -> tuple[str, ...]:
    """Return one reason for each part of the program that differs; empty when the fingerprints are equal.

    Under another version of Python code cannot be compared, and code is then not listed.
    """
    if recorded.digest == live.digest:
        return ()
    changes = changes_between(recorded.factors, live.factors)
    replaced = {change.name.partition(":")[2] for change in changes if change.name.startswith("module:")}
    no_code = any(change.name == _WHOLE for change in changes)
    reasons = tuple(
        _explain(change)
        for change in sorted(changes, key=_rank)
        if not _follows(change, replaced) and not (no_code and change.name.startswith("code:"))
    )
    if not reasons:
        return ("the fingerprint differs, in no part that was recorded",)
    if len(reasons) > _MOST_REASONS:
        rest = len(reasons) - _MOST_REASONS
        return (*reasons[:_MOST_REASONS], f"and {rest} more part(s) differ")
    return reasons


def _follows(change: FactorChange, replaced: Set[str]) -> bool:
    """True for what lies in modules that are other modules now: that those were replaced says it."""
    part, _, where = change.name.partition(":")
    return part in ("attributes", "tensors", "constants") and where in replaced


def _rank(change: FactorChange) -> int:
    """Causes first: a hook or a mode before the tree, the tree before attributes, tensors and code."""
    order = (_WHOLE, "training", "hooks", "global hooks", "parametrizations", "tied", "defaults", "module")
    part = change.name.partition(":")[0]
    return order.index(part) if part in order else len(order)


def _explain(change: FactorChange) -> str:
    part, _, where = change.name.partition(":")
    before, after = _parse(change.before), _parse(change.after)
    place = where or "the module itself"
    match part:
        case "bytecode":
            return f"compiled from code of Python {before}, this is Python {after}: code cannot be compared"
        case "defaults":
            return f"default dtype was {before}, is {after}"
        case "training":
            return f"training mode was {before}, is {after}"
        case "hooks" | "global hooks" | "parametrizations" | "tied":
            return _explain_list(part, before, after)
        case "module" if change.before is None:
            return f"module {place} was not there: {_cut(after)}"
        case "module" if change.after is None:
            return f"module {place} is gone: {_cut(before)}"
        case "module":
            return f"{f'module {where}' if where else place} was {_cut(before)}, is {_cut(after)}"
        case "code":
            return _explain_code(where, change, before, after)
        case "attributes" | "object" | "tensors" | "constants":
            return f"{part} of {place}: {_compare(before, after)}"
    return f"{change.name} differs: {_compare(before, after)}"


def _explain_list(part: str, before: Any, after: Any) -> str:
    names = {
        "hooks": "forward hooks",
        "global hooks": "global forward hooks",
        "parametrizations": "parametrizations",
        "tied": "tied parameters",
    }
    was, is_now = _flat(before), _flat(after)
    new = [one for one in is_now if one not in was]
    gone = [one for one in was if one not in is_now]
    told = [f"{word} {_cut(', '.join(found))}" for word, found in (("new:", new), ("gone:", gone)) if found]
    return f"{names[part]} differ: {'; '.join(told) or 'in detail'}"


def _explain_code(where: str, change: FactorChange, before: Any, after: Any) -> str:
    if change.before is None:
        return f"code of {where} was not part of the program"
    if change.after is None:
        return f"code of {where} is part of the program no more"
    changed = _differing(before, after)
    return f"code of {where} changed" + (f": {', '.join(changed[:_MOST_KEYS])}" if changed else "")


def _compare(before: Any, after: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        was, is_now = _cut(before), _cut(after)
        return f"was {was}, is {is_now}" if was != is_now else _BEYOND
    keys = _differing(before, after)
    told = [_compare_one(key, before.get(key, "absent"), after.get(key, "absent")) for key in keys]
    more = f"; and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
    return "; ".join(told[:_MOST_KEYS]) + more if told else _BEYOND


def _compare_one(key: str, before: Any, after: Any) -> str:
    """Of modules whose names differ by numbers only, those that have changed: "size was 16, is 8 in number 4 of 5"."""
    was, is_now = _column(before), _column(after)
    if len(was) == 1:
        was *= len(is_now)
    if len(is_now) == 1:
        is_now *= len(was)
    if len(was) != len(is_now) or len(was) == 1:
        return f"{key} was {_cut(before)}, is {_cut(after)}"
    first, *others = [index for index, (one, other) in enumerate(zip(was, is_now, strict=True)) if one != other]
    more = f" and {len(others)} more" if others else ""
    return f"{key} was {_cut(was[first])}, is {_cut(is_now[first])} in number {first + 1}{more} of {len(was)}"


def _column(value: Any) -> list[Any]:
    """See `_first_values` of aot.runtime.fingerprint."""
    return list(value["varies"]) if isinstance(value, Mapping) and list(value) == ["varies"] else [value]


def _differing(before: Any, after: Any) -> list[str]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []
    absent = object()
    return [key for key in dict.fromkeys((*before, *after)) if before.get(key, absent) != after.get(key, absent)]


def _flat(value: Any) -> list[str]:
    """Return hooks as `where: hook`, groups of tied names as `a = b`, and other lists as texts."""
    match value:
        case dict():
            return [
                f"{where}: {hook}"
                for where, kinds in value.items()
                for hooks in kinds.values()
                for hook in _flat(hooks)
            ]
        case list():
            return [_flat_item(item) for item in value]
        case None | "":
            return []
    return [str(value)]


def _flat_item(item: Any) -> str:
    match item:
        case [str(name), dict()]:  # a hook: its name and what it is
            return name
        case list():
            return " = ".join(map(str, item))
    return str(item)


def _parse(text: str | None) -> Any:
    """Return what a factor's text spells; a text that is no JSON, or was cut, as it is."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."


def is_of_program(recorded: Fingerprint) -> bool:
    """Whether what was compiled is an exported program whose parts were recorded (aot.runtime.program)."""
    return any(factor.name == "program" for factor in recorded.factors)


def explain_conduct(module: "Module") -> tuple[str, ...]:
    """Return why `module` cannot be a program that runs for inference and nothing beside: for those without factors.

    Of an exported program nothing is known but its graph: a training mode, a forward hook or a parametrization of the
    live module is not in it. A module that is such a graph itself is not asked for the mode that it does not have.
    """
    training = dict.fromkeys(name or "the module itself" for name, one in _moded("", module) if one.training)
    hooks = [
        f"{where}: {name_of(hook)}"
        for where, table in _hook_tables(module)
        for hook in _active_hooks(table).values()
        if not _is_of_export(hook)
    ]
    found = {
        "is in training mode": list(training),
        "has forward hooks": hooks,
        "has parametrizations": parametrized(dict(module.named_modules())),
    }
    return tuple(
        f"the live module {what}, of which the exported program knows nothing: {_cut(', '.join(where))}"
        for what, where in found.items()
        if where
    )


def _moded(name: str, module: "Module") -> "Iterator[tuple[str, Module]]":
    """The parts whose training mode may matter. A graph has none, and uses that of the modules that it calls."""
    from torch.fx import GraphModule

    if isinstance(module, GraphModule):
        called = dict.fromkeys(node.target for node in module.graph.nodes if node.op == "call_module")
        children = [(str(target), module.get_submodule(str(target))) for target in called]
    else:
        yield name, module
        children = list(module.named_children())
    for child, one in children:
        if _is_of_export(type(one)):
            continue
        yield from _moded(f"{name}.{child}" if name else child, one)


def _is_of_export(checker: Any) -> bool:
    """True for the hooks and modules that check inputs in the graph that torch.export returns: as input guards do."""
    return str(getattr(checker, "__module__", "")).startswith("torch.export.")


class Hooks:
    """The forward hooks in a module, as they were when this was made; microseconds for hundreds of modules.

    Hooks that libraries install on their own and that do nothing (`is_idle`) may come, until somebody asks for the
    intermediate results that they collect: compiled code does not produce those.
    """

    def __init__(self, module: "Module") -> None:
        self._tables = _hook_tables(module)
        copies = self._copies()
        self._known = list(map(_active_hooks, copies))
        self._lock = RLock()  # again by the same thread: a signal's handler may call the model
        # What the last look found: tables to find empty again, and the keys of the others. Always these two lists:
        # who looks at them at every call (aot.runtime.watch) needs to ask for them once.
        self.empty: list[Mapping[Any, Any]] = []
        self.filled: list[tuple[Mapping[Any, Any], tuple[Any, ...]]] = []
        self._note(copies)

    def change(self) -> str | None:
        """Say what is no longer as it was. While nothing is `filled` and all in `empty` is empty: None."""
        moved = any(self.empty) or any(tuple(table) != keys for table, keys in self.filled)
        if moved and (reason := self._look()):
            return reason
        if self.filled and is_capturing():
            return "intermediate results were asked for, which hooks inside the compiled part would have to collect"
        return None

    def _look(self) -> str | None:
        with self._lock:
            copies = self._copies()
            for (where, _), copy, before in zip(self._tables, copies, self._known, strict=True):
                if (found := _active_hooks(copy)) != before:
                    return _hook_change(where, before, found)
            self._note(copies)
        return None

    def _copies(self) -> list[dict[Any, Any]]:
        """What another thread adds or takes out while these are examined, the next look finds moved."""
        return [dict(table) if table else {} for _, table in self._tables]

    def _note(self, copies: list[dict[Any, Any]]) -> None:
        seen = [(table, tuple(copy)) for (_, table), copy in zip(self._tables, copies, strict=True)]
        # In this order: for other threads, a table that has just been filled is in one of them at any time.
        self.filled[:] = [(table, keys) for table, keys in seen if keys]
        self.empty[:] = [table for table, keys in seen if not keys]


def _hook_change(where: str, before: Mapping[Any, Any], found: Mapping[Any, Any]) -> str:
    if new := [hook for key, hook in found.items() if key not in before]:
        return f"a forward hook was added to {where} after loading: {name_of(new[0])}"
    gone = [hook for key, hook in before.items() if key not in found]
    return f"a forward hook was removed from {where} after loading: {name_of(gone[0])}"


def _active_hooks(table: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: hook for key, hook in table.items() if not is_idle(hook)}


def _hook_tables(module: "Module") -> list[tuple[str, Mapping[Any, Any]]]:
    import torch.nn.modules.module as everywhere

    shared = [everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks]
    own = [
        (name or "the module itself", table)
        for name, one in module.named_modules()
        for table in (one._forward_hooks, one._forward_pre_hooks)
    ]
    return [*(("every module", table) for table in shared), *own]
