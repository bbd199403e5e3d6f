"""`CompiledModel`: called like the module it stands for; compiled code where it fits, eager where it does not."""

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from aot.errors import GuardFailed
from aot.runtime.counters import Counters
from aot.runtime.unit import Miss, Unit
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.wire.workers import Outcome

if TYPE_CHECKING:
    from torch.nn import Module

log = logging.getLogger("aot")


class Fallback(StrEnum):
    EAGER = "eager"
    RAISE = "raise"


class CompiledModel:
    """A live module and the artifacts that were loaded for it.

    A call takes the module's own arguments. With fallback "eager" it never fails for a reason of ours: `last_miss`,
    `reasons` and `counters` say what was not compiled. With "raise", a call outside every coverage raises
    GuardFailed. Threads may call it at once. Load after a fork, not before: neither OpenMP nor CUDA survive one.

    With regions, the instances' `forward` is replaced on the live module until `unload`.
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
        self.on_close: Callable[[CompiledModel], None] | None = None
        self._counters = counters or Counters()
        self._reasons = tuple(reasons)
        self._units = tuple(units)
        self._whole = units[0] if len(units) == 1 and units[0].name == "" else None
        self._seen: set[str] = set()
        for unit in self._units:
            if unit.name:
                self._replace_forward(unit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._whole is None:
            return self.module(*args, **kwargs)
        result = self._whole.call(args, kwargs)
        if result.__class__ is Miss:
            return self._run_eagerly(result, self.module, args, kwargs)
        self._counters.compiled()
        return result

    @property
    def outcome(self) -> Outcome:
        """Whether all, some or none of the module's regions have something compiled."""
        against = [bool(unit.against) for unit in self._units]
        if not against or all(against):
            return Outcome.EAGER
        return Outcome.PARTLY if any(against) else Outcome.COMPILED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that speaks against compiled code here, from selection, loading and binding."""
        found = [f"{unit.name}: {reason}" if unit.name else reason for unit in self._units for reason in unit.against]
        return (*self._reasons, *found)

    @property
    def counters(self) -> dict[str, int]:
        """`calls` = `compiled` + `eager`; with regions, one call of each instance counts."""
        return self._counters.read()

    def rebind(self) -> None:
        """Bind again to the module's tensors as they are now; needed only for what `is_current` cannot see."""
        for unit in self._units:
            unit.rebind()

    def unload(self) -> None:
        """Give the module back as it was. Later calls run eagerly."""
        for unit in self._units:
            if unit.name:
                unit.module.__dict__.pop("forward", None)
        self._units, self._whole = (), None
        if self.on_close is not None:
            self.on_close(self)

    def __repr__(self) -> str:
        return f"CompiledModel({self.reference or self.bundle or '?'}, {self.outcome}, {type(self.module).__name__})"

    def _run_eagerly(self, miss: Miss, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._note(miss)
        if self.fallback is Fallback.RAISE and miss.kind != "eager_won":
            raise GuardFailed(
                f"the call is outside every coverage of {self.reference or 'the artifact'}: {miss.reason}",
                hint='call within the coverage, build another one, or load with fallback="eager"',
                details={"reason": miss.reason},
            )
        self._counters.eager()
        return eager(*args, **kwargs)

    def _note(self, miss: Miss) -> None:
        getattr(self._counters, miss.kind)()
        self.last_miss = miss.reason
        if miss.reason not in self._seen and len(self._seen) < 100:
            self._seen.add(miss.reason)
            log.warning("aot runs %s eagerly: %s", self.reference or type(self.module).__name__, miss.reason)

    def _replace_forward(self, unit: Unit) -> None:
        original = unit.module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            result = unit.call(args, kwargs)
            if result.__class__ is Miss:
                return self._run_eagerly(result, original, args, kwargs)
            self._counters.compiled()
            return result

        unit.module.forward = forward
