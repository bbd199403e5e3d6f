"""What Inductor tunes while it compiles, watched from beside it: each kernel, its candidates, and the time it took.

Private parts of torch 2.11 to 2.13, each looked up and left alone where a release does not have it: then seconds count
as compiling, and nothing is taken from earlier builds.
"""

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot.compile.torch_tuned import measurements_written
from aot.environment.clocks import ReadClocks, clock_reader
from aot.schema.artifact import Kernel
from aot.schema.environment import Clocks
from aot.schema.measured import Candidates

Around = Callable[[str], contextlib.AbstractContextManager[None]]

_NUMBER = re.compile(r"_\d+$")
# Of a kernel that Inductor generates: the choice among configurations, and the search from the best of them.
_CONFIGURING = ("autotune_to_one_config", "_coordinate_descent_tuning")


@dataclass
class Tuning:
    """What the autotuner reported, in order of its decisions: each kernel, and the times of all of its candidates.

    And the card's clocks then, None for what it reused.
    """

    kernels: list[Kernel] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    clocks: list[Clocks | None] = field(default_factory=list)
    read_clocks: ReadClocks = lambda: None

    def note(self, timings: Any, name: str, *, reused: bool = False) -> None:
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
        self.clocks.append(None if reused else self.read_clocks())


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
def watch_tuning(around: Around = lambda what: contextlib.nullcontext()) -> Iterator[Tuning]:
    """Collect what max-autotune measures inside the block; `around` is entered while one kernel is tuned.

    It is given what is tuned. On a card most products are compared long after they are met, once it is known what
    could be fused with them, so what counts is when candidates are waited for and measured, never when they are listed.
    """
    from torch._inductor import select_algorithm
    from torch._inductor.runtime import triton_heuristics

    with contextlib.ExitStack() as whole:
        tuning = Tuning(read_clocks=whole.enter_context(clock_reader()))
        watch = _Watch(around)
        select_algorithm.add_feedback_saver(
            # Five arguments in some releases, six in others: a wrong count fails the build.
            lambda *reported: tuning.note(reported[0], str(reported[1]), reused=watch.reuses)
        )
        whole.callback(select_algorithm.clear_feedback_savers)
        for owner, name, wrap in (
            (select_algorithm.AlgorithmSelectorCache, "do_autotuning", watch.of_choices),
            *((triton_heuristics.CachingAutotuner, name, watch.of_configurations) for name in _CONFIGURING),
        ):
            if original := getattr(owner, name, None):
                setattr(owner, name, wrap(original))
                whole.callback(setattr, owner, name, original)
        yield tuning


class _Watch:
    """Stands around Inductor's own methods. Only the thread that made it is watched: phases are told in one line."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._thread = threading.get_ident()
        self._numbers = itertools.count(1)
        self._measured_here: set[Hashable] = set()
        self._question: Hashable = None
        self._before: int | None = None  # None while nothing is compared

    @property
    def reuses(self) -> bool:
        """Whether the kernel that is compared now was measured by an earlier build, and not by this one."""
        if self._before is None:
            return False
        if self._before != measurements_written():
            self._measured_here.add(self._question)
        return self._question not in self._measured_here

    def of_choices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(cache: Any, *given: Any, **named: Any) -> Any:
            # do_autotuning(name, input_nodes, layout, input_gen_fns, inputs_key, choices, ...)
            name, key, choices = given[0], given[4], given[5]
            if self._elsewhere() or len(choices) < 2:
                return original(cache, *given, **named)
            self._question, self._before = (name, key), measurements_written()
            try:
                with self._around(f"kernel {next(self._numbers)}, {len(choices)} candidates"):
                    return original(cache, *given, **named)
            finally:
                self._before = None

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
