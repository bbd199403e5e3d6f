"""Makes the artifacts of the route `function`: one for each example set and each coverage of it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.compile.artifacts import PhaseLog, file_of, toolchain_facts
from aot.compile.constants import describe_parameters
from aot.compile.export import run_eagerly
from aot.compile.function.compile import CompiledFunction, compile_function, refuse_local_classes
from aot.compile.function.describe import describe_call
from aot.compile.function.host import function_guards
from aot.compile.function.trial import Seen, try_call
from aot.compile.guards import Described
from aot.compile.host import program_guards, route_facts
from aot.compile.job import ARTIFACTS_DIRECTORY, CompileJob, CompileOutcome
from aot.compile.measured import compiled_facts
from aot.compile.options import inductor_settings, mode_notes
from aot.compile.program import Program, forward_parameters, forward_speaker
from aot.compile.shapes import Point, make_point, plan_points
from aot.compile.torch_tuning import Question
from aot.errors import InvalidSpec, SourceNotExportable
from aot.facts import read_elf
from aot.runtime.fingerprint import fingerprint
from aot.runtime.process import observe_process
from aot.schema.artifact import Artifact, ConstantMeta
from aot.schema.recipe import Dimension, Randomness, Route
from aot.schema.report import CompileReport, Phase, RegionReport


class FunctionMaker:
    """The settings of one job, applied to one coverage after the other."""

    def __init__(self, job: CompileJob, program: Program, *, isa: str, progress: PhaseLog) -> None:
        self._job = job
        self._program = program
        self._isa = isa
        self._progress = progress
        self._settings = inductor_settings(job.recipe, job.profile)
        self._tree = Path(job.tree) if job.tree else None
        self._warnings = list(mode_notes(job.recipe, job.profile))
        self._measured_here: set[Question] = set()  # by the tuning of this job

    def make(self) -> CompileOutcome:
        """Compile every coverage. Raises the families CompileFailed and InvalidSpec."""
        module = self._program.module
        with self._progress.phase(Phase.LOADING):
            if self._tree is None:
                raise SourceNotExportable(
                    "an exported program has no module that Dynamo could trace",
                    hint='give a factory, or set routes = ["package"]',
                )
            if self._job.profile.capability.family != "cpu":
                raise InvalidSpec(
                    f"route function is built for CPUs by this version, not for {self._job.profile.capability}",
                    hint='set routes = ["package"], or name a profile of a CPU',
                )
            refuse_local_classes(module)
            identity, parameters = fingerprint(module), describe_parameters(module)
            points = [piece for point in plan_points(self._program, self._job.recipe) for piece in split_ones(point)]
        made = [
            self._make_one(index, f"{index + 1} of {len(points)}: {point.label}", point, parameters)
            for index, point in enumerate(points)
        ]
        artifacts = tuple(artifact for artifact, _ in made)
        report = CompileReport(
            regions=tuple(region for _, region in made),
            toolchain=toolchain_facts(self._job.profile.toolchain, artifacts),
            phases=dict(self._progress.seconds),
            options={name: str(value) for name, value in sorted(self._settings.items())},
            warnings=tuple(dict.fromkeys(self._warnings)),
        )
        return CompileOutcome(artifacts=artifacts, fingerprint=identity, parameters=parameters, report=report)

    def _make_one(
        self, index: int, step: str, point: Point, parameters: Sequence[ConstantMeta]
    ) -> tuple[Artifact, RegionReport]:
        module, into = self._program.module, Path(self._job.out) / ARTIFACTS_DIRECTORY / str(index)
        into.mkdir(parents=True)
        with self._progress.phase(Phase.EXPORTING, step):
            flops = run_eagerly(module, point.example, tree=self._tree)
            seen = try_call(module, point.example)
            self._refuse_random(seen)
            described = describe_call(
                point,
                seen.result,
                parameters=forward_parameters(module),
                written=seen.inputs,
                speak=forward_speaker(module),
            )
        with self._progress.phase(Phase.COMPILING, step):
            function = compile_function(
                module,
                point,
                self._settings,
                into=into,
                tree=self._tree,
                around_tuning=lambda what: self._progress.phase(Phase.TUNING, f"{step}; {what}"),
                measured_here=self._measured_here,
            )
        constants = tuple(msgspec.structs.replace(one, mutated=one.name in seen.tensors) for one in parameters)
        artifact = self._record(point, described, function, constants)
        report = RegionReport(
            region="",
            instances=1,
            coverage=point.label,
            export_seconds=0.0,
            compile_seconds=round(function.seconds, 3),
            library_bytes=sum(path.stat().st_size for path in function.libraries),
            flops=flops,
            kernels=function.kernels,
        )
        return artifact, report

    def _refuse_random(self, seen: Seen) -> None:
        if not seen.draws:
            return
        if self._job.recipe.random is Randomness.REFUSE:
            raise SourceNotExportable(
                "the program draws random numbers, so its outputs cannot be compared with eager's",
                hint='put the module into eval mode, pass the noise as an input, or set random = "unchecked"',
                details={"region": ""},
            )
        self._warnings.append("the program draws random numbers")

    def _record(
        self, point: Point, described: Described, function: CompiledFunction, constants: tuple[ConstantMeta, ...]
    ) -> Artifact:
        profile, recipe = self._job.profile, self._job.recipe
        facts = route_facts(recipe, profile, self._settings, self._isa)
        facts |= {f"guards: {held}": str(count) for held, count in sorted(function.elsewhere.items())}
        facts |= compiled_facts(profile, function.tuning)
        guards = program_guards(observe_process(), recipe, profile, settings=self._settings, multiplies=True)
        return Artifact(
            region="",
            instances=("",),
            route=Route.FUNCTION,
            capability=profile.capability,
            coverage=point.coverage,
            files=tuple(file_of(function.directory, path) for path in sorted(function.files)),
            host_guards=(*function_guards([read_elf(path) for path in function.libraries], profile), *guards),
            input_guards=described.input_guards,
            program_guards=function.guards,
            call=described.call,
            inputs=described.inputs,
            outputs=described.outputs,
            constants=constants,
            kernels=function.kernels,
            facts=facts,
        )


@dataclass(frozen=True)
class _Choice:
    dimension: Dimension
    single: bool


def split_ones(point: Point) -> Iterator[Point]:
    """Yield the point, or pieces of it where open sizes begin below 2.

    Dynamo takes a size of 1 for a constant of the program, so each dimension that may be 1 is compiled for that by
    itself, beside the rest of its range.
    """
    low = [one for one in point.ranged.values() if one.low < 2]
    if not low:
        yield point
        return
    choices = []
    for one in low:
        step = max(1, one.multiple_of)
        rest = msgspec.structs.replace(one, low=-(-2 // step) * step)
        one_only = [_Choice(msgspec.structs.replace(one, low=1, high=1), True)] if step == 1 else []
        choices.append([*one_only, _Choice(rest, False)])
    for chosen in itertools.product(*choices):
        named = {choice.dimension.name: choice.dimension for choice in chosen}
        dimensions = [named.get(one.name, one) for one in point.coverage.dimensions]
        yield make_point(point.example, point.coverage.example, point.sizes, dimensions)
