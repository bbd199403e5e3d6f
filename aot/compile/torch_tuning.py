"""What Inductor tunes while it compiles, watched from beside it: each kernel, its candidates, and the time it took.

Private parts of torch 2.11 to 2.13, each looked up and left alone where a release does not have it: then seconds count
as compiling, and nothing counts as taken from earlier builds.
"""

import contextlib
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot.compile.torch_tuned import measurements_written, wrapped
from aot.environment.clocks import ReadClocks, clock_reader
from aot.schema.artifact import Kernel
from aot.schema.environment import Clocks
from aot.schema.measured import Candidates

Around = Callable[[str], contextlib.AbstractContextManager[None]]

_NUMBER = re.compile(r"_\d+$")
# Of a kernel that Inductor generates: the choice among configurations, and the search from the best of them.
_CONFIGURING = ("autotune_to_one_config", "_combo_sequential_autotune", "_coordinate_descent_tuning")
Question = tuple[str, str]  # the operation, and its inputs as Inductor keys them


@dataclass
class Tuning:
    """What the autotuner reported, in order of its decisions: each kernel, and the times of all of its candidates.

    And the card's clocks then, None where nothing was measured.
    """

    kernels: list[Kernel] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    clocks: list[Clocks | None] = field(default_factory=list)
    read_clocks: ReadClocks = lambda: None

    def note(self, timings: Any, name: str, *, measured: bool = True, reused: bool = False) -> None:
        """Take down one decision: `measured` just now or found, and `reused` where an earlier build had measured it."""
        labels = zip(timings, label_candidates(list(timings)), strict=True)
        ranked = sorted((float(timings[one]), getattr(one, "name", str(one)), label) for one, label in labels)
        finite = [(ms, choice) for ms, choice, _ in ranked if ms != float("inf")]
        if not finite:
            return
        self.kernels.append(
            Kernel(
                name=name,
                choice=finite[0][1],
                candidates=len(ranked),
                best_us=round(finite[0][0] * 1000, 3),
                next_us=round(finite[1][0] * 1000, 3) if len(finite) > 1 else None,
                reused=reused,
            )
        )
        self.candidates.append({label: round(ms * 1000, 3) if ms < float("inf") else None for ms, _, label in ranked})
        self.clocks.append(self.read_clocks() if measured else None)


def label_candidates(choices: Sequence[Any]) -> list[str]:
    """Return a name for each candidate of one kernel: what it is, and what of its configuration not all of them have.

    Inductor numbers candidates through the whole graph, so by those names equal kernels have no candidate in common.
    """
    described = [str(getattr(choice, "description", "") or "") for choice in choices]
    shared = set.intersection(*[set(one.split(", ")) for one in described if one] or [set()])
    labels: list[str] = []
    for choice, description in zip(choices, described, strict=True):
        name = str(getattr(choice, "name", choice))
        own = ", ".join(part for part in description.split(", ") if part and part not in shared)
        label = f"{_NUMBER.sub('', name)} ({own})" if own else name
        labels.append(name if label in labels else label)
    return labels


@contextlib.contextmanager
def watch_tuning(
    around: Around = lambda what: contextlib.nullcontext(), *, measured_here: set[Question] | None = None
) -> Iterator[Tuning]:
    """Collect what max-autotune measures inside the block; `around` is entered while one kernel is tuned.

    It is given what is tuned. `measured_here` has what this build has measured so far, and gets what it measures now:
    none of that is taken from an earlier build. On a card most products are compared long after they are met, once it
    is known what could be fused with them, so what counts is when candidates are waited for and measured.
    """
    from torch._inductor import select_algorithm
    from torch._inductor.runtime import triton_heuristics

    with contextlib.ExitStack() as whole:
        tuning = Tuning(read_clocks=whole.enter_context(clock_reader()))
        watch = _Watch(around, set() if measured_here is None else measured_here)
        select_algorithm.add_feedback_saver(
            # Five arguments in some releases, six in others: a wrong count fails the build.
            lambda *reported: tuning.note(reported[0], str(reported[1]), **watch.found())
        )
        whole.callback(select_algorithm.clear_feedback_savers)
        for owner, name, wrap in (
            (select_algorithm.AlgorithmSelectorCache, "do_autotuning", watch.of_choices),
            *((triton_heuristics.CachingAutotuner, name, watch.of_configurations) for name in _CONFIGURING),
        ):
            whole.enter_context(wrapped(owner, name, wrap))
        yield tuning


class _Watch:
    """Stands around Inductor's own methods. Only the thread that made it is watched: phases are told in one line."""

    def __init__(self, around: Around, measured_here: set[Question]) -> None:
        self._around = around
        self._measured_here = measured_here
        self._thread = threading.get_ident()
        self._numbers = itertools.count(1)
        self._open: list[tuple[Question, int]] = []  # what is compared now, and the state of the measurements before

    def found(self) -> dict[str, bool]:
        """How the decision came about that is reported now: as `Tuning.note` takes it."""
        if not self._open:
            return {}
        question, before = self._open[-1]
        if measured := before != measurements_written():
            self._measured_here.add(question)
        return {"measured": measured, "reused": question not in self._measured_here}

    def of_choices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def compare(*given: Any, **named: Any) -> Any:
            told = signature.bind(*given, **named).arguments
            if self._elsewhere() or not {"name", "inputs_key", "choices"} <= told.keys():
                return original(*given, **named)
            count = len(told["choices"])
            what = f"kernel {next(self._numbers)}, {count} candidates" if count > 1 else ""
            self._open.append(((told["name"], told["inputs_key"]), measurements_written()))
            try:
                with self._around(what) if what else contextlib.nullcontext():
                    return original(*given, **named)
            finally:
                self._open.pop()

        return compare

    def of_configurations(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(autotuner: Any, *args: Any, **named: Any) -> Any:
            if self._elsewhere():
                return original(autotuner, *args, **named)
            with self._around(f"configuration of {autotuner.inductor_meta.get('kernel_name', 'a kernel')}"):
                return original(autotuner, *args, **named)

        return choose

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread
