"""The numerics child: every coverage at its boundaries with other weights and inputs than the build's, and speed.

It writes outputs down and judges nothing: `aot.qualify.compare` does, in another process. Two rounds: with the base
weights the smallest point of every coverage, a call with non-contiguous inputs, and speed; with perturbed weights every
point, by two consecutive calls, since state that was lost shows in the second.
"""

import functools
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from msgspec import structs

from aot.bundle import StoredBundle
from aot.compile.program import Program
from aot.environment.clocks import observe_clocks
from aot.errors import QualificationFailed
from aot.qualify.job import CASES_DIRECTORY, NON_CONTIGUOUS, REPLAYED, Case, Omission, ProofJob, SpeedClaim, Tell
from aot.qualify.loading import loaded
from aot.qualify.outputs import Trace, run_traced, save_traces, state_of
from aot.qualify.points import Point, describe_point
from aot.qualify.reference import Reference
from aot.qualify.speed import Contender, measure
from aot.qualify.subject import Call, Group, Subject, groups_of, uncompiled
from aot.qualify.weights import kept, perturb
from aot.qualify.winner import speed_of
from aot.runtime.compiled import CompiledModel
from aot.select import describe_coverage

# Of the whole budget, and of one point of it.
SPEED_SHARE, SPEED_SECONDS = 0.3, 1.0


class Numerics:
    """The cases, speeds and omissions of one program, as they come."""

    def __init__(self, job: ProofJob, program: Program, bundle: StoredBundle, tell: Tell) -> None:
        self.cases: list[Case] = []
        self.speeds: list[SpeedClaim] = []
        self.omissions: list[Omission] = []
        self._job = job
        self._module = program.module
        self._bundle = bundle
        self._tell = tell
        self._out = Path(job.out)
        (self._out / CASES_DIRECTORY).mkdir(exist_ok=True)
        self._deadline = time.monotonic() + job.seconds
        self.subjects = [Subject(program, group) for group in groups_of(bundle.manifest.artifacts)]
        self._points = [subject.points() for subject in self.subjects]
        self._replayed: set[tuple[tuple[int, ...], str]] = set()  # artifacts, point
        self._seconds: dict[tuple[int, ...], tuple[int, float]] = {}  # of the largest call so far: elements, seconds

    def run(self) -> None:
        """Run both rounds. The module's weights are perturbed afterwards."""
        self._check_points()
        base = Reference(self._module, memory_bytes=self._job.memory_bytes)
        for subject, points in zip(self.subjects, self._points, strict=True):
            with loaded(self._bundle, subject.group, self._module, views=self._out / "views") as model:
                self._run_base(subject, model, points, base)
        if not self._job.frozen:
            perturb(self._module, seed=self._job.seed + 1)
        weights = str(self._job.base) if self._job.frozen else "perturbed"
        changed = Reference(self._module, memory_bytes=self._job.memory_bytes)
        for subject, points in zip(self.subjects, self._points, strict=True):
            with loaded(self._bundle, subject.group, self._module, views=self._out / "views") as model:
                for point in points:
                    self._run_point(subject, model, point, weights, changed)
        self.speeds = withheld(self.speeds, self._replayed)

    def run_case(
        self,
        subject: Subject,
        model: CompiledModel,
        calls: tuple[Call, ...],
        *,
        point: Point,
        weights: str,
        variants: Sequence[str],
        reference: Reference,
    ) -> None:
        """Make the consecutive `calls` eagerly, compiled and in the reference, each from the same state."""
        state = state_of(self._module, mutated_names(subject.group))
        with uncompiled(self._module, subject.group), kept(tuple(state.values())):
            eager = tuple(run_traced(self._module, call, state) for call in calls)
        compiled, answers = [], []
        with kept(tuple(state.values())):
            for call in calls:
                before = model.counters
                compiled.append(run_traced(model, call, state))
                answers.append((before, model.counters, model.last_miss))
        if not self._job.checked:
            kind, wide = "", eager
        else:
            with uncompiled(self._module, subject.group):
                kind, wide = reference.run(calls, eager)
        for index, variant in enumerate(variants):
            case = Case(
                artifacts=subject.group.indices,
                point=point,
                weights=weights,
                variant=variant,
                reference=kind,
                eager_form=eager[index].form,
                compiled_form=compiled[index].form,
                **_answered(*answers[index]),
            )
            self._keep(case, eager[index], compiled[index], wide[index])

    def _keep(self, case: Case, eager: Trace, compiled: Trace, reference: Trace) -> None:
        file = f"{len(self.cases):04}.safetensors" if self._job.checked else ""
        if file:
            save_traces(self._out / CASES_DIRECTORY / file, eager=eager, compiled=compiled, reference=reference)
        self.cases.append(_with_file(case, file))

    def _run_base(self, subject: Subject, model: CompiledModel, points: Sequence[Point], reference: Reference) -> None:
        weights, smallest = str(self._job.base), points[0]
        run = functools.partial(self.run_case, subject, model, weights=weights, reference=reference)
        self._say(subject, smallest, f"{weights} weights")
        run((subject.call_at(smallest, seed=self._job.seed + 1),), point=smallest, variants=("",))
        beside = points[min(1, len(points) - 1)]  # strides of a dimension with one element say nothing
        self._say(subject, beside, "non-contiguous inputs")
        spread = subject.call_at(beside, seed=self._job.seed + 2, non_contiguous=True)
        run((spread,), point=beside, variants=(NON_CONTIGUOUS,))
        for point in points if self._job.cpu is None else ():  # an emulator's pace says nothing of a CPU's
            # No artifact goes live without one speed: at the smallest point it is measured whatever it takes.
            self._time(subject, model, point, required=point == smallest)

    def _time(self, subject: Subject, model: CompiledModel, point: Point, *, required: bool) -> None:
        left = self._deadline - time.monotonic() - self._job.seconds * (1 - SPEED_SHARE)
        granted = min(SPEED_SECONDS, left)
        if granted <= 0 and not required:
            self._omit_speed(subject, point, f"{max(0.0, left):.0f} s were left")
            return
        self._say(subject, point, "speed")
        call = subject.call_at(point, seed=self._job.seed + 3)
        state = state_of(self._module, mutated_names(subject.group))
        device = next((tensor.device for tensor in (*call.tensors, *self._module.parameters())), None)
        eager = Contender(
            _without_gradients(self._module, call), functools.partial(uncompiled, self._module, subject.group)
        )
        run = _without_gradients(model, call)
        graphs = Contender(run, functools.partial(kept, ())) if model.graphs else None
        compiled = Contender(run, model.without_graphs)
        with kept(tuple(state.values())):
            import torch

            speed = measure(
                point,
                eager,
                compiled,
                device=device or torch.device("cpu"),
                seconds=max(0.2, granted),
                required=required,
                graphs=graphs,
            )
        if speed is None:
            self._omit_speed(subject, point, "a call takes too long")
        else:
            clocks = observe_clocks() if device is not None and device.type == "cuda" else None
            claim = SpeedClaim(
                artifacts=subject.group.indices,
                speed=speed,
                graph_memory_bytes=model.graph_memory_bytes,
                clocks=clocks,
            )
            self.speeds.append(claim)

    def _omit_speed(self, subject: Subject, point: Point, why: str) -> None:
        self.omissions.append(Omission(artifacts=subject.group.indices, point=point, reason=f"no speed: {why}"))

    def _run_point(
        self, subject: Subject, model: CompiledModel, point: Point, weights: str, reference: Reference
    ) -> None:
        calls = self._affordable_calls(subject, point, wanted=len(REPLAYED) if model.graphs else 2)
        if calls == 0:
            return
        self._say(subject, point, f"{weights} weights")
        made = tuple(subject.call_at(point, seed=self._job.seed + 10 + index) for index in range(calls))
        started = time.monotonic()
        variants = REPLAYED[:calls]
        self.run_case(subject, model, made, point=point, weights=weights, variants=variants, reference=reference)
        spent = (time.monotonic() - started) / calls
        if calls == len(REPLAYED):
            self._replayed.add((subject.group.indices, describe_point(point)))
        self._seconds[subject.group.indices] = (subject.elements_at(point), spent)

    def _affordable_calls(self, subject: Subject, point: Point, *, wanted: int) -> int:
        """Two calls (`wanted`: three), and one (with an omission) where they would take longer than is left.

        Every point gets its call, however long it takes: what nobody tried must not go live, and a proof that does
        not come to its end within the spec's limits fails. Under an emulator, which is asked about instructions alone
        and at a hundredth of the pace, a point may be left out.
        """
        measured = self._seconds.get(subject.group.indices)
        if measured is None:
            return wanted
        elements, seconds = measured
        expected = seconds * max(1.0, subject.elements_at(point) / elements)
        left = self._deadline - time.monotonic()
        for calls in (wanted, 2):
            if expected * calls <= left:
                return calls
        fitting = self._job.cpu is None or expected <= left
        what = "only one call" if fitting else "not tried"
        reason = f"{what}: a call was expected to take {expected:.0f} s, {max(0.0, left):.0f} s were left"
        self.omissions.append(Omission(artifacts=subject.group.indices, point=point, reason=reason))
        return int(fitting)

    def _check_points(self) -> None:
        for subject, points in zip(self.subjects, self._points, strict=True):
            if not points:
                raise QualificationFailed(
                    f"no size fits the coverage {describe_coverage(subject.group.first)}",
                    hint="its dimensions contradict what the program asks of its inputs",
                )

    def _say(self, subject: Subject, point: Point, what: str) -> None:
        first = subject.group.first
        name = first.region or "whole program"
        self._tell(f"{name} [{describe_coverage(first)}] at {describe_point(point)}: {what}")


def withheld(speeds: Sequence[SpeedClaim], replayed: Set[tuple[tuple[int, ...], str]]) -> list[SpeedClaim]:
    """Return the speeds without the graphs of those points at which no replay was compared: none may win there."""
    found = []
    for claim in speeds:
        speed = claim.speed
        if speed.graphs is not None and (claim.artifacts, describe_point(speed.point)) not in replayed:
            without = speed_of(speed.point, speed.eager, speed.compiled)
            claim = structs.replace(claim, speed=without, graph_memory_bytes=0)
        found.append(claim)
    return found


def mutated_names(group: Group) -> tuple[str, ...]:
    """Return the full names of the tensors that the artifacts write into."""
    return tuple(
        f"{instance}.{constant.name}" if instance else constant.name
        for artifact in group.artifacts
        for constant in artifact.constants
        if constant.mutated
        for instance in artifact.instances
    )


def _without_gradients(function: Callable[..., object], call: Call) -> Callable[[], object]:
    import torch

    def run() -> object:
        with torch.no_grad():
            return function(*call.args, **call.kwargs)

    return run


def _answered(before: dict[str, int], after: dict[str, int], last_miss: str) -> dict[str, object]:
    missed = sum(after[name] - before[name] for name in ("guard_misses", "failed", "eager_won"))
    return {
        "compiled": after["compiled"] - before["compiled"],
        "misses": missed,
        "last_miss": last_miss if missed else "",
    }


def _with_file(case: Case, file: str) -> Case:
    import msgspec

    return msgspec.structs.replace(case, file=file)
