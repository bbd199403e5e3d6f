"""`CompiledModel`: called like the module it stands for; compiled code where it fits, eager where it does not."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from aot.errors import GuardFailed, InvalidInput, RunFailed
from aot.runtime.counters import Counters, Miss
from aot.runtime.replaced import Replaced
from aot.runtime.unit import FORKED, Unit
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.names import Reference

if TYPE_CHECKING:
    from torch.nn import Module

    from aot.runtime.graphs import GraphReport
    from aot.schema.wire.workers import Outcome

log = logging.getLogger("aot")
MOST_WARNINGS = 20
MOST_CHARACTERS = 1000
_loaded: "WeakSet[CompiledModel]" = WeakSet()


class Fallback(StrEnum):
    EAGER = "eager"
    RAISE = "raise"


class CompiledModel:
    """A live module and the artifacts that were loaded for it.

    A call takes the module's own arguments. With fallback "eager" it never fails for a reason of ours: `last_miss`,
    `reasons` and `counters` say what was not compiled. With "raise", a call outside every coverage raises
    GuardFailed, and one that the compiled program fails at, RunFailed. Threads may call it at once.

    `module` is the live module, for everything but calls: `model.module.load_state_dict(...)`, `.eval()`, `.to()`.
    Such a change is noticed at the next call; what no longer fits runs eagerly, until it fits again.

    Load after a fork: neither OpenMP nor CUDA survive one, so in a child an earlier model runs eagerly. It cannot be
    copied or pickled; its module can. With regions, the instances' `forward` is replaced on the live module until
    `unload`.
    """

    def __init__(
        self,
        module: "Module",
        units: Sequence[Unit],
        *,
        fallback: Fallback,
        reference: Reference | None = None,
        bundle: Digest | None = None,
        selection: Selection | None = None,
        reasons: Sequence[str] = (),
        counters: Counters | None = None,
    ) -> None:
        self.module = module
        self.reference = reference
        self.bundle = bundle
        self.selection = selection
        self.fallback = fallback
        self.last_miss = ""
        self._counters = counters or Counters()
        self._reasons = tuple(reasons)
        self._units = tuple(units)
        self._whole = units[0] if len(units) == 1 and units[0].name == "" else None
        self._seen: set[str] = set()
        self._replaced = tuple(
            Replaced(unit.module, unit.call, count=self._counters.compiled, missed=partial(self._run_eagerly, unit))
            for unit in units
            if unit.name
        )
        _note_forks()
        _loaded.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        whole = self._whole
        if whole is not None:
            result = whole.call(args, kwargs)
            if result.__class__ is Miss:
                return self._run_eagerly(whole, result, self.module, args, kwargs)
            self._counters.compiled()
            return result
        if not self._units:
            self._counters.eager()
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # one of ours has failed: with its own error, not this one
        hint = f"; the module has it: `.module.{name}`" if hasattr(self.__dict__.get("module"), name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def outcome(self) -> "Outcome":
        """Whether all, some or none of the module's regions have something compiled."""
        from aot.schema.wire.workers import Outcome

        compiled = [unit.is_compiled for unit in self._units]
        if not any(compiled):
            return Outcome.EAGER
        return Outcome.COMPILED if all(compiled) else Outcome.PARTLY

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that speaks against compiled code here, from selection, loading and binding."""
        found = Counter(reason for unit in self._units for reason in dict.fromkeys(unit.reasons))
        common = [reason for reason, count in found.items() if count == len(self._units)]
        own = [f"{unit.name}: {one}" for unit in self._units for one in unit.reasons if one not in common]
        return tuple(dict.fromkeys((*self._reasons, *common, *own)))

    @property
    def counters(self) -> dict[str, int]:
        """`calls` = `compiled` + `eager`; with regions, one call of each instance counts."""
        return self._counters.read()

    @property
    def graphs(self) -> dict[str, tuple["GraphReport", ...]]:
        """By region instance ("" for the whole program): which sizes run as CUDA graphs, at what cost in memory.

        Holds the instances that may run as graphs; empty where none does.
        """
        return {
            unit.name: tuple(one for graphs in found for one in graphs.reports())
            for unit in self._units
            if (found := unit.graphs)
        }

    @property
    def graph_memory_bytes(self) -> int:
        """What all CUDA graphs of the model hold on their cards: their pools and input buffers."""
        graphs = [one for unit in self._units for one in unit.graphs]
        if not graphs:
            return 0
        from aot.runtime.graphs import memory_of

        return memory_of(graphs)

    def capture_graphs(self, calls: Iterable[Sequence[Any]]) -> dict[str, tuple["GraphReport", ...]]:
        """Capture the sizes of `calls` now, each a call's positional arguments, and return `graphs`.

        For before a server takes requests: no request then pays for a capture. Each call is made twice, as the first
        two of its size would be, and counted; sizes at which a graph did not win are not captured. What the module
        writes into its buffers meanwhile, by a graph or not, is taken back, so nothing else may call the model.
        """
        import torch

        if not any(unit.graphs for unit in self._units):
            return self.graphs
        with torch.no_grad():
            # All of them: the whole module runs, with other regions and with what is compiled by none.
            kept = [(one, one.clone()) for one in self.module.buffers()]
            try:
                for call in calls:
                    self(*call)
                    self(*call)
            finally:
                with torch.inference_mode():  # buffers may have been made in it, and can be written in no other
                    for buffer, value in kept:
                        buffer.copy_(value)
        return self.graphs

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Within the block no call is replayed as a CUDA graph, in any thread: to compare, or to find a fault.

        Blocks may be nested, and entered by several threads: there are graphs again when the last one has ended.
        """
        with ExitStack() as blocks:
            for unit in self._units:
                blocks.enter_context(unit.without_graphs())
            yield

    def rebind(self) -> None:
        """Bind again to the module's tensors as they are now; needed only for what `aot.runtime.watch` lists."""
        for unit in self._units:
            unit.rebind()

    def unload(self) -> None:
        """Give the module back as it was. Later calls run eagerly."""
        for replaced in self._replaced:
            replaced.restore()
        self._units, self._whole, self._replaced = (), None, ()

    def __repr__(self) -> str:
        return f"CompiledModel({self.reference or self.bundle or '?'}, {self.outcome}, {type(self.module).__name__})"

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a CompiledModel cannot be copied or pickled: it is bound to the tensors of one module in one process",
            hint="copy its .module, and load the bundle for the copy",
        )

    def _run_eagerly(
        self, unit: Unit, miss: Miss, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        raises = self.fallback is Fallback.RAISE and miss.kind != "eager_won"
        self._note(miss, unit, said=not raises)
        if raises:
            raise self._error(miss)
        self._counters.eager()
        return eager(*args, **kwargs)

    def _error(self, miss: Miss) -> GuardFailed | RunFailed:
        name = self.reference or "the artifact"
        if miss.kind == "failed":
            return RunFailed(f"{name} failed: {miss.reason}", hint='load with fallback="eager" to go on without it')
        return GuardFailed(
            f"the call is outside every coverage of {name}: {miss.reason}",
            hint='call within the coverage, build another one, or load with fallback="eager"',
            details={"reason": miss.reason},
        )

    def _note(self, miss: Miss, unit: Unit, *, said: bool) -> None:
        """Count the miss, and say it in the log: not where it is raised instead."""
        getattr(self._counters, miss.kind)()
        reason = miss.reason[:MOST_CHARACTERS]
        self.last_miss = f"{unit.name}: {reason}" if unit.name else reason
        # Distinct sizes give distinct reasons: a server that is sent every length must not fill its log.
        if not said or reason in self._seen or len(self._seen) >= MOST_WARNINGS:
            return
        self._seen.add(reason)
        name = self.reference or type(self.module).__name__
        log.warning("aot runs %s eagerly: %s", name, self.last_miss)
        if len(self._seen) == MOST_WARNINGS:
            log.warning("aot says no more of what runs eagerly in %s; its counters go on", name)


@cache
def _note_forks() -> None:
    """Make the models of this process run eagerly in its children; once."""

    def abandon_all() -> None:
        for model in list(_loaded):
            for unit in model._units:
                unit.abandon(FORKED)

    os.register_at_fork(after_in_child=abandon_all)
