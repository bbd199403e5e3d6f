"""The tuned build of a unit against the untuned one: timed as wholes, as a pod runs them; the faster one is kept.

Tuning times each kernel alone, with the card's caches emptied and a launch to itself. At small sizes candidates differ
by less than a launch does, and what wins apart may lose in the program: a decoder of GPT-2's size with 64 tokens took
0.66 ms a call tuned, and 0.52 ms untuned (torch 2.11; an H200, an H100 before it). So the program decides.

Runs in the compile child, after a build that tuned something. Nothing of it is a proof: what is kept is proven like
every other build, and the speeds that a pod follows are measured there.
"""

import copy
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aot.compile.constants import Wanted
from aot.compile.export import Exported
from aot.compile.guards import Described
from aot.compile.inductor import CompiledPackage
from aot.compile.units import Unit
from aot.errors import CompileFailed
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from aot.schema.artifact import ConstantMeta
from aot.schema.measured import Contest

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[[Sequence["Tensor"]], Any]

# What tunes, as options of Inductor; one that the recipe sets itself is the user's decision, and is not compared.
TUNING_OPTIONS = ("max_autotune", "coordinate_descent_tuning", "max_autotune_gemm", "max_autotune_pointwise")
# The untuned build must be faster by more than medians of one process differ.
NOISE = 1.02
SECONDS = 2.0
MOST_CALLS = 200
_LEAST_CALLS = 5
# A graph is captured at the second call, and the first replay comes after it.
_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Built:
    """One way that a unit was compiled. `wanted` has the tensors it runs on, `saved` the files of lifted ones."""

    exported: Exported
    package: CompiledPackage
    described: Described
    constants: tuple[ConstantMeta, ...]
    wanted: Mapping[str, Wanted]
    saved: tuple[str, ...]
    contest: Contest | None = None  # where it was compared with its untuned or tuned other

    @property
    def tuned(self) -> bool:
        """Whether candidates were compared for any kernel."""
        return any(kernel.candidates > 1 for kernel in self.package.kernels)


@dataclass(frozen=True)
class Times:
    """Median microseconds a call, of calls taken in turn."""

    tuned_us: float
    untuned_us: float

    @property
    def untuned_wins(self) -> bool:
        return self.tuned_us > NOISE * self.untuned_us

    def told(self, rejected: Mapping[str, str], tuned: Built) -> Contest:
        """The fact of it. `rejected` is what `tuned` would have had among its facts."""
        lost = self.untuned_wins
        return Contest(
            tuned_us=round(self.tuned_us, 3),
            untuned_us=round(self.untuned_us, 3),
            kept_untuned=lost,
            kernels=tuple(tuned.package.tuning.kernels) if lost else (),
            facts=rejected if lost else {},
        )

    def __str__(self) -> str:
        ahead = "the untuned build is kept" if self.untuned_wins else "the tuned build is kept"
        return f"{self.tuned_us:.1f} us a call tuned and {self.untuned_us:.1f} us untuned: {ahead}"


def untuned(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `settings` without tuning; None where there is none to leave out, or the recipe's options ask for it."""
    if not settings.get("max_autotune") or any(name in chosen for name in TUNING_OPTIONS):
        return None
    return {**settings, "max_autotune": False, "coordinate_descent_tuning": False}


def compare(tuned: Built, other: Built, unit: Unit, *, device: str, graphs: bool, frozen: bool) -> Times:
    """Time both on the unit's own example, by CUDA graphs where `graphs`.

    Raises LoadFailed, BindingFailed, RunFailed and torch's RuntimeError where one of them does not run.
    """
    how = {"device": device, "graphs": graphs, "frozen": frozen}
    with _opened(tuned, unit, **how) as first, _opened(other, unit, **how) as second:
        medians = _time_in_turn((first, second), synchronizer(device))
    return Times(*medians)


@contextmanager
def _opened(built: Built, unit: Unit, *, device: str, graphs: bool, frozen: bool) -> Iterator[Callable[[], Any]]:
    """Yield a call of the build on inputs and written buffers of its own."""
    tensors = {
        name: one.value.detach().clone() if one.meta.mutated else one.value.detach()
        for name, one in built.wanted.items()
    }
    inputs = _inputs_of(built, unit)
    opened: list[Container] = []

    def open_one(num_models: int | None = None) -> Container:
        cubins = built.package.directory / "cubin"
        opened.append(Container.open(built.package.library, device=device, cubins=cubins, num_models=num_models))
        if frozen:
            opened[-1].keep_own()
        else:
            opened[-1].bind({slot.fqn: tensors[slot.fqn] for slot in opened[-1].constants if not slot.folded})
        return opened[-1]

    try:
        yield partial(_graphed(open_one, device, tensors) if graphs else open_one().run, inputs)
    finally:
        for container in opened:
            container.close()


def _graphed(open_one: Callable[..., Container], device: str, tensors: Mapping[str, "Tensor"]) -> Run:
    from aot.runtime.graphs import Graphed, GraphSpace

    return Graphed(open_one(1), open_one(), GraphSpace(device), tensors).run


def _inputs_of(built: Built, unit: Unit) -> tuple["Tensor", ...]:
    """The example's tensors, flat, as the program takes them."""
    call = bind_call(built.described.call, inspect.signature(unit.module.forward))
    args, kwargs = copy.deepcopy((unit.point.example.args, dict(unit.point.example.kwargs)))
    found = call.flatten(args, kwargs)
    if isinstance(found, str):
        raise CompileFailed(f"the example of {unit.label} is no call of what was compiled from it: {found}")
    return found


def _time_in_turn(calls: Sequence[Callable[[], Any]], synchronize: Callable[[], None]) -> list[float]:
    """Return each call's median in microseconds. The order changes from round to round."""
    for call in calls:
        for _ in range(_WARM_UP):
            call()
    synchronize()
    samples: list[list[float]] = [[] for _ in calls]
    ending = time.perf_counter() + SECONDS
    while len(samples[0]) < MOST_CALLS and (len(samples[0]) < _LEAST_CALLS or time.perf_counter() < ending):
        order = range(len(calls)) if len(samples[0]) % 2 else reversed(range(len(calls)))
        for index in order:
            started = time.perf_counter()
            calls[index]()
            synchronize()
            samples[index].append(1e6 * (time.perf_counter() - started))
    return [statistics.median(one) for one in samples]


def synchronizer(device: str) -> Callable[[], None]:
    """Return what waits for the work that was given to `device`."""
    if device.partition(":")[0] == "cpu":
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)
