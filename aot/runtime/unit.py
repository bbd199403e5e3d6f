"""One region of the live module with the artifacts that answer for it: guards, then compiled code, else a reason.

Every call of a loaded program passes through `Unit.call`; it must stay within a few microseconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.errors import GuardFailed, RunFailed
from aot.runtime.calling import BoundCall
from aot.runtime.container import Container
from aot.runtime.counters import Counters, Miss
from aot.runtime.graphs import Graphed
from aot.runtime.watch import any_requires_grad
from aot.runtime.winner import Choose
from aot.schema.artifact import Winner

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Check = Callable[[Sequence["Tensor"]], "str | None"]
Run = Callable[[Sequence["Tensor"]], "tuple[Tensor | None, ...]"]

FORKED = "it was loaded before a fork, which neither OpenMP nor CUDA survive; load it in the child"


class Variant(Struct, frozen=True):
    """One artifact, loaded and bound for one instance."""

    coverage: str
    check: Check
    container: Container
    choose: Choose | None  # the fastest way, by the sizes of a call; None where compiled code always is
    writes: bool  # to the module's buffers: a failed run cannot be repeated eagerly
    graphs: Graphed | None = None  # where calls may be replayed


class Form(Struct, frozen=True):
    """The variants that share one calling convention, in the order in which they are tried.

    A call of `plain` arguments, all by position, is its own flat inputs if they are tensors; -1 where none is.
    """

    call: BoundCall
    variants: tuple[Variant, ...]
    plain: int = -1


def _always() -> bool:
    return True


def never() -> bool:
    return False


def _unchanged() -> None:
    return None


class Bound(Struct, frozen=True):
    """What a unit runs on between two bindings; replaced as a whole, so a call sees one or the other.

    `is_current`: the module holds what it held when this was made. `change`: what it does otherwise than then, for as
    long as it does. `is_settled`: there are forms, and both would say that nothing has changed: one look, for every
    call. `against`: why there is no form; `reasons`: the same, and why single artifacts are left out.
    """

    forms: tuple[Form, ...] = ()
    is_current: Callable[[], bool] = _always
    change: Callable[[], str | None] = _unchanged
    is_settled: Callable[[], bool] = never
    tensors: tuple["Tensor", ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def against(self) -> tuple[str, ...]:
        return () if self.forms else self.reasons


Bind = Callable[[], Bound]


class Unit:
    """One instance of a region. `bind` opens and binds its artifacts for the module as it is now."""

    def __init__(self, name: str, module: "Module", bind: Bind, counters: Counters) -> None:
        self.name = name
        self.module = module
        self.counters = counters
        self._bind = bind
        self._lock = Lock()
        self._records_gradients = _grad_mode_reader()
        self._kept: tuple[Any, ...] = ()
        self._without_graphs: set[object] = set()  # blocks: adding and taking out one is atomic, counting is not
        self._bound = bind()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why nothing, or not everything, is compiled here at present."""
        return self._bound.reasons

    @property
    def is_compiled(self) -> bool:
        """Whether something is compiled here at present."""
        return bool(self._bound.forms)

    @property
    def graphs(self) -> tuple[Graphed, ...]:
        """What replays calls as CUDA graphs here at present."""
        return tuple(variant.graphs for form in self._bound.forms for variant in form.variants if variant.graphs)

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """No call is replayed until every such block has ended, of whatever thread, and whatever is bound meanwhile."""
        block = object()
        self._without_graphs.add(block)
        try:
            yield
        finally:
            self._without_graphs.discard(block)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the compiled result, or a Miss. Raises RunFailed where eager cannot take over.

        What most calls go through is written out here: each function more would cost as much as one of the checks.
        """
        bound = self._bound
        if not bound.is_settled():
            found = self._settle(bound)
            if found.__class__ is Miss:
                return found
            bound = found  # type: ignore[assignment]
        if self._records_gradients() and any_requires_grad(bound.tensors):
            return Miss("gradients are being recorded and the weights require them", "guard_misses")
        reasons: list[str] = []
        for form in bound.forms:
            is_plain = not kwargs and len(args) == form.plain
            tensors = args if is_plain else form.call.flatten(args, kwargs)
            if tensors.__class__ is str:
                reasons.append(tensors)  # type: ignore[arg-type]
                continue
            for variant in form.variants:
                refused = variant.check(tensors)  # type: ignore[arg-type]
                if refused is None:
                    run = variant.container.run if variant.choose is None else self._fastest(variant, tensors)
                    if run.__class__ is Miss:
                        return run
                    try:
                        return form.call.unflatten(run(tensors))  # type: ignore[operator]
                    except GuardFailed as error:
                        refused = error.message  # another example set may be for this very state
                    except RunFailed as error:
                        if variant.writes:
                            raise
                        return Miss(error.message, "failed")
                reasons.append(f"[{variant.coverage}] {refused}")
            if is_plain and (reason := form.call.flatten(args, kwargs)).__class__ is str:
                reasons[-len(form.variants) :] = [reason]  # they are no tensors, and it says what was wanted
        return Miss("; ".join(reasons), "guard_misses")

    def _settle(self, bound: Bound) -> Bound | Miss:
        """Return what to run on, bound again where the module holds something else by now; or why nothing can be."""
        if not bound.is_current():
            bound = self.rebind(stale=bound)
        if not bound.forms:
            return Miss(bound.reasons[0], "guard_misses")
        if reason := bound.change():
            return Miss(reason, "guard_misses")
        return bound

    def rebind(self, *, stale: Bound | None = None) -> Bound:
        """Bind to the module's tensors as they are now. With `stale`, only if that is still what is bound."""
        with self._lock:
            if stale is None or self._bound is stale:
                self._bound = self._bind()
                self.counters.rebinds()
            return self._bound

    def abandon(self, reason: str) -> None:
        """Run eagerly from now on, without touching what is bound: after a fork, in the child."""
        self._lock = Lock()  # a thread of the parent may have held it
        # Closing a container waits for calls in flight, and those of the parent never end here: keep them open.
        self._kept = (*self._kept, self._bound, self._bind)
        self._bound = Bound(reasons=(reason,))
        self._bind = lambda: Bound(reasons=(reason,))

    def _fastest(self, variant: Variant, tensors: Sequence["Tensor"]) -> "Run | Miss":
        """Return what runs a call of these sizes."""
        assert variant.choose is not None
        fastest = variant.choose(tensors)
        if fastest is Winner.EAGER:
            return Miss(f"[{variant.coverage}] eager was faster in the proof at sizes like these", "eager_won")
        if fastest is Winner.GRAPHS and variant.graphs is not None and not self._without_graphs:
            return variant.graphs.run
        return variant.container.run


def _grad_mode_reader() -> Callable[[], bool]:
    import torch

    return torch.is_grad_enabled
