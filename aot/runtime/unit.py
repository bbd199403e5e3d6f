"""One region of the live module with the artifacts that answer for it: guards, then compiled code, else a reason.

Every call of a loaded program passes through `Unit.call`; it must stay within a few microseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from aot.errors import RunFailed
from aot.runtime.calling import BoundCall
from aot.runtime.container import Container
from aot.runtime.counters import Counters
from aot.runtime.liveness import watch_hooks
from aot.schema.artifact import Winner

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Plan(Protocol):
    """What an artifact was bound to, and whether the module still holds it."""

    @property
    def tensors(self) -> "Mapping[str, Tensor]": ...

    def is_current(self) -> bool: ...


Check = Callable[[Sequence["Tensor"]], "str | None"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One artifact, loaded and bound for one instance."""

    coverage: str
    check: Check
    container: Container
    winner: Winner
    writes: bool  # to the module's buffers: a failed run cannot be repeated eagerly


@dataclass(frozen=True, slots=True)
class Form:
    """The variants that share one calling convention, in the order in which they are tried."""

    call: BoundCall
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """What a unit runs on between two bindings; replaced as a whole, so a call sees one or the other."""

    forms: tuple[Form, ...]
    plans: tuple[Plan, ...]
    tensors: tuple["Tensor", ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a call has to run eagerly."""

    reason: str
    kind: str  # a counter's name


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
        self._bound = bind()
        self._modes = tuple(part.__dict__ for part in module.modules())
        # Hooks that are there now were there at the build as well, or the fingerprints would differ.
        self._hook_change = watch_hooks(module)
        self._training = [table["training"] for table in self._modes]

    @property
    def against(self) -> tuple[str, ...]:
        """Why nothing is compiled here at present; empty when something is."""
        return self._bound.against

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the compiled result, or a Miss. Raises RunFailed where eager cannot take over."""
        bound = self._bound
        for plan in bound.plans:
            if not plan.is_current():
                bound = self.rebind(stale=bound)
                break
        if bound.against:
            return Miss(bound.against[0], "guard_misses")
        if reason := self._changed(bound):
            return Miss(reason, "guard_misses")
        reasons: list[str] = []
        for form in bound.forms:
            tensors = form.call.flatten(args, kwargs)
            if tensors.__class__ is str:
                reasons.append(tensors)  # type: ignore[arg-type]
                continue
            for variant in form.variants:
                refused = variant.check(tensors)  # type: ignore[arg-type]
                if refused is None:
                    return self._run(form, variant, tensors)  # type: ignore[arg-type]
                reasons.append(f"[{variant.coverage}] {refused}")
        return Miss("; ".join(reasons), "guard_misses")

    def rebind(self, *, stale: Bound | None = None) -> Bound:
        """Bind to the module's tensors as they are now. With `stale`, only if that is still what is bound."""
        with self._lock:
            if stale is None or self._bound is stale:
                self._bound = self._bind()
                self.counters.rebinds()
            return self._bound

    def _run(self, form: Form, variant: Variant, tensors: Sequence["Tensor"]) -> Any:
        if variant.winner is Winner.EAGER:
            return Miss(f"[{variant.coverage}] eager was faster in the proof", "eager_won")
        try:
            outputs = variant.container.run(tensors)
        except RunFailed as error:
            if variant.writes:
                raise
            return Miss(error.message, "failed")
        return form.call.unflatten(outputs)

    def _changed(self, bound: Bound) -> str | None:
        """Say what of mode, hooks and gradients is no longer as it was when the module was loaded."""
        if reason := self._hook_change():
            return reason
        if [table["training"] for table in self._modes] != self._training:
            return "the training mode was changed after loading"
        if self._records_gradients() and any(tensor.requires_grad for tensor in bound.tensors):
            return "gradients are being recorded and the weights require them; compiled code computes none"
        return None


def _grad_mode_reader() -> Callable[[], bool]:
    import torch

    return torch.is_grad_enabled
