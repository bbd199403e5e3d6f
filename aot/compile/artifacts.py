"""Makes the artifacts of one opened program: each region at each point of its coverage."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aot.bundle.hashing import blob_of
from aot.compile.constants import Wanted, account_for, describe_parameters, save_lifted, wanted_constants
from aot.compile.contest import Built, compare, untuned
from aot.compile.cover import answered_ranges, left_over, narrow
from aot.compile.export import Exported, export_point, sizes_from_one
from aot.compile.guards import describe
from aot.compile.host import (
    capability_of,
    host_guards,
    multiplies_float32,
    program_guards,
    refuse_second_runtime,
    route_facts,
)
from aot.compile.inductor import CompiledPackage, compile_package
from aot.compile.job import ARTIFACTS_DIRECTORY, CompileJob, CompileOutcome
from aot.compile.kernels.kept import keep_kernels
from aot.compile.measured import compiled_facts, tell_configured, tell_reused, tuned_facts
from aot.compile.multi_arch import multi_arch_note
from aot.compile.options import captures_graphs, inductor_settings, mode_notes
from aot.compile.program import Program, forward_parameters, forward_speaker
from aot.compile.refuse import refuse_random, refuse_state
from aot.compile.shapes import Point, plan_points
from aot.compile.torch_tuning import Question
from aot.compile.tuned import TUNING_FILE, parse_measured
from aot.compile.units import Unit, UnitPlanner
from aot.errors import BackendFailed, SourceNotExportable
from aot.facts import read_elf
from aot.facts.targets import FATBIN, Fallback, fallback_of
from aot.facts.versions import highest
from aot.runtime.container import Container
from aot.runtime.fingerprint import fingerprint
from aot.runtime.process import observe_process
from aot.runtime.weights import WEIGHTS_FACT, digest_weights
from aot.schema.artifact import Artifact, ConstantMeta, Coverage
from aot.schema.capability import Capability
from aot.schema.codec import encode
from aot.schema.factor import Fingerprint
from aot.schema.guard import HostGuard
from aot.schema.measured import write_contest
from aot.schema.profile import Toolchain
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Phase, RegionReport
from aot.schema.spec import File

# Where a tuned unit is built untuned as well, and the faster one kept. On a CPU only frozen weights are tuned for.
CONTESTED = ("cuda", "rocm")
MOST_PIECES = 3  # times that a left-over range is compiled again


class PhaseLog(Protocol):
    seconds: dict[str, float]

    def phase(self, phase: Phase, step: str = "") -> Any:
        """A context in which the work is in `phase`."""


class ArtifactMaker:
    """The settings of one job, applied to one unit at one point after the other."""

    def __init__(self, job: CompileJob, program: Program, *, isa: str, progress: PhaseLog) -> None:
        self._job = job
        self._program = program
        self._isa = isa
        self._progress = progress
        self._settings = inductor_settings(job.recipe, job.profile)
        self._tree = Path(job.tree) if job.tree else None
        self._planner = UnitPlanner(program, job.recipe.regions, tree=self._tree)
        self._warnings = list(mode_notes(job.recipe, job.profile))
        self._measured_here: set[Question] = set()  # by the tuning of this job

    def make(self) -> CompileOutcome:
        """Export and compile everything. Raises the families CompileFailed and InvalidSpec."""
        with self._progress.phase(Phase.LOADING):
            identity = self._identify()
            parameters = describe_parameters(self._program.module)
        with self._measurements():
            made = list(self._make_all())
        artifacts = tuple(artifact for artifact, _ in made)
        self._warnings += tell_reused(artifacts)
        return CompileOutcome(
            artifacts=artifacts,
            fingerprint=identity,
            parameters=parameters,
            report=self._report(tuple(report for _, report in made), artifacts),
        )

    @contextmanager
    def _measurements(self) -> Iterator[None]:
        """Begin with what earlier builds have measured, and leave what is known then, where the job wants that."""
        if not self._job.tuning:
            yield
            return
        from aot.compile.torch_tuned import collect_measured, seeded

        with seeded(parse_measured(Path(self._job.tuning).read_bytes())) as configurations:
            yield
        self._warnings += tell_configured(configurations)
        (Path(self._job.out) / TUNING_FILE).write_bytes(encode(collect_measured()))

    def _identify(self) -> Fingerprint:
        return self._program.identity or fingerprint(self._program.module)

    def _make_all(self) -> Iterator[tuple[Artifact, RegionReport]]:
        # Finding regions runs the program; it is part of what an export costs.
        with self._progress.phase(Phase.EXPORTING, "looking for regions"):
            points = plan_points(self._program, self._job.recipe)
            waiting = [unit for point in points for unit in self._planner.units_at(point)]
        if not waiting:
            raise SourceNotExportable(
                "no repeated block can be compiled by itself",
                hint='set regions = "whole"; the details say what is in the way',
                details={"region": "", "left_out": list(self._planner.notes)},
            )
        index = 0
        while waiting:
            unit = waiting.pop(0)
            step = f"{index + 1} of {index + 1 + len(waiting)}: {unit.label}, {unit.whole.label}"
            artifact, report, rest = self._make_one(index, step, unit)
            yield artifact, report
            index += 1
            if rest and unit.pieces >= MOST_PIECES:
                self._warnings.append(f"{unit.label}: {', '.join(one.label for one in rest)} stays uncovered")
                continue
            for point in reversed(rest):
                again = self._planner.units_at(point, instances=unit.instances, pieces=unit.pieces + 1)
                waiting = [*again, *waiting]

    def _make_one(self, index: int, step: str, unit: Unit) -> tuple[Artifact, RegionReport, tuple[Point, ...]]:
        """Return the artifact for `unit` and its report; and points for what it turned out not to cover."""
        into = Path(self._job.out) / ARTIFACTS_DIRECTORY / str(index)
        if unit.point.from_one:
            try:
                with sizes_from_one():
                    return self._attempt(into, step, unit)
            except (SourceNotExportable, BackendFailed):
                # Not every program goes through that way; by default sizes of 1 become a piece of their own.
                shutil.rmtree(into, ignore_errors=True)
        return self._attempt(into, step, unit)

    def _attempt(self, into: Path, step: str, unit: Unit) -> tuple[Artifact, RegionReport, tuple[Point, ...]]:
        built = self._build(into, step, unit, self._settings)
        if built.tuned and self._job.profile.capability.family in CONTESTED:
            built = self._contest(into, step, unit, built)
        ranges = answered_ranges(unit.point, built.described)
        narrowed = built.described.narrowed
        conditions = tuple(one.text.removeprefix("only where ") for one in narrowed if not one.dimension)
        if conditions:
            more = f" and {len(conditions) - 1} more condition(s)" if len(conditions) > 1 else ""
            self._warnings.append(f"{unit.label}, {unit.whole.label}: only where {conditions[0]}{more}")
        # Regions of one coverage are told by equal coverages, so a condition of one of them is not part of it.
        whole = narrow(unit.whole, ranges, constraints=() if unit.region else conditions)
        artifact = self._record(unit, whole.coverage, built, self._program_guards(built.exported))
        report = region_report(unit, whole.label, built.exported, built.package)
        return artifact, report, tuple(left_over(unit.whole, ranges))

    def _build(self, into: Path, step: str, unit: Unit, settings: Mapping[str, Any]) -> Built:
        """Export and compile `unit` with `settings` into the new directory `into`."""
        describe_it = partial(describe, parameters=forward_parameters(unit.module), speak=forward_speaker(unit.module))
        into.mkdir(parents=True)
        with self._progress.phase(Phase.EXPORTING, step):
            exported = export_point(unit.module, unit.point, region=unit.region, tree=self._tree)
            self._refuse(exported, unit)
            # For its refusals; what the guards are is known once Inductor has decided.
            describe_it(exported.program, dimension_names=exported.symbols)
        with self._progress.phase(Phase.COMPILING, step):
            scratch = Path(self._job.build)
            package = compile_package(
                exported,
                settings,
                region=unit.region,
                into=into,
                scratch=scratch,
                around_tuning=lambda what: self._progress.phase(Phase.TUNING, f"{step}; {what}"),
                measured_here=self._measured_here,
            )
            refuse_second_runtime(read_elf(package.library), self._job.profile)
            wanted = {} if self._job.recipe.freeze else wanted_constants(exported, unit.module)
            constants, saved = self._account(wanted, unit, package)
        described = describe_it(exported.program, dimension_names=exported.symbols)
        return Built(
            exported=exported, package=package, described=described, constants=constants, wanted=wanted, saved=saved
        )

    def _contest(self, into: Path, step: str, unit: Unit, tuned: Built) -> Built:
        """Return the faster of `tuned` and a build without tuning, with its files in `into`."""
        job = self._job
        if (settings := untuned(self._settings, job.recipe.options)) is None:
            return tuned
        beside = into.with_name(f"{into.name}-untuned")
        try:
            other = self._build(beside, f"{step}; untuned, to compare", unit, settings)
            # Not of the phase in which candidates are measured: no earlier build spares this one any of it.
            with self._progress.phase(Phase.COMPILING, f"{step}; tuned against untuned"):
                graphs = captures_graphs(job.recipe, job.profile)
                device = job.profile.torch_device
                times = compare(tuned, other, unit, device=device, graphs=graphs, frozen=job.recipe.freeze)
        except Exception as error:
            # The tuned build is good by itself, whatever hinders a comparison; that there was none is said.
            shutil.rmtree(beside, ignore_errors=True)
            self._warnings.append(f"{unit.label}, {unit.whole.label}: tuned, not compared with untuned: {error}"[:500])
            return tuned
        self._warnings.append(f"{unit.label}, {unit.whole.label}: {times}")
        contest = times.told(tuned_facts(job.profile, tuned.package.tuning), tuned)
        if not times.untuned_wins:
            shutil.rmtree(beside)
            return replace(tuned, contest=contest)
        shutil.rmtree(into)
        beside.rename(into)
        return replace(other, package=replace(other.package, directory=into), contest=contest)

    def _refuse(self, exported: Exported, unit: Unit) -> None:
        drawn = refuse_random(exported.program.graph_module, self._job.recipe, region=unit.region)
        if drawn:
            self._warnings.append(f"{unit.label} draws random numbers: {', '.join(drawn)}")
        if self._job.recipe.freeze:
            refuse_state(exported.mutated, region=unit.region)

    def _account(
        self, wanted: Mapping[str, Wanted], unit: Unit, package: CompiledPackage
    ) -> tuple[tuple[ConstantMeta, ...], tuple[str, ...]]:
        if self._job.recipe.freeze:
            return (), ()
        family = self._job.profile.capability.family
        constants = account_for(asked_names(package.library, family), wanted, region=unit.region)
        return constants, save_lifted(constants, wanted, package.directory)

    def _program_guards(self, exported: Exported) -> tuple[HostGuard, ...]:
        job = self._job
        multiplies = multiplies_float32(exported.program.graph_module)
        return program_guards(
            observe_process(), job.recipe, job.profile, settings=self._settings, multiplies=multiplies
        )

    def _fallback(self, kernels: list[tuple[str, Path]], capability: Capability, library: Path) -> Fallback | None:
        fallback = fallback_of(kernels, library=library)
        if note := multi_arch_note(self._job.recipe, capability, fallback):
            self._warnings.append(note)
        return fallback

    def _record(self, unit: Unit, coverage: Coverage, built: Built, guards: tuple[HostGuard, ...]) -> Artifact:
        profile, package, described = self._job.profile, built.package, built.described
        elf = read_elf(package.library)
        kernels = [(path, package.directory / path) for path in package.files if path.endswith((".cubin", FATBIN))]
        capability = capability_of(profile, [place for _, place in kernels], library=package.library)
        built_for = host_guards(
            elf,
            profile,
            torch=profile.toolchain.torch,
            capability=capability,
            fallback=self._fallback(kernels, capability, package.library),
            of_module=self._tree is not None,
        )
        kept, why = keep_kernels(dict(kernels), package.directory, self._job)
        self._warnings += [f"{unit.label}, {unit.whole.label}: {why}"] if why else []
        return Artifact(
            region=unit.region,
            instances=unit.instances,
            route=Route.PACKAGE,
            capability=capability,
            coverage=coverage,
            files=tuple(file_of(package.directory, path) for path in sorted((*package.files, *built.saved))),
            host_guards=(*built_for, *guards),
            input_guards=described.input_guards,
            call=described.call,
            inputs=described.inputs,
            outputs=described.outputs,
            constants=built.constants,
            elf=elf,
            kernels=package.kernels,
            facts=self._facts(unit) | compiled_facts(profile, package.tuning) | write_contest(built.contest),
            kept=kept,
        )

    def _facts(self, unit: Unit) -> dict[str, str]:
        facts = route_facts(self._job.recipe, self._job.profile, self._settings, self._isa)
        if self._job.recipe.freeze:
            # The loader compares: a frozen artifact would run any other checkpoint on the weights it has inside.
            facts[WEIGHTS_FACT] = digest_weights(unit.module)
        return facts

    def _report(self, regions: tuple[RegionReport, ...], artifacts: tuple[Artifact, ...]) -> CompileReport:
        return CompileReport(
            regions=regions,
            toolchain=toolchain_facts(self._job.profile.toolchain, artifacts),
            phases=dict(self._progress.seconds),
            options={name: str(value) for name, value in sorted(self._settings.items())},
            warnings=tuple(dict.fromkeys((*self._warnings, *self._planner.notes))),
        )


def toolchain_facts(toolchain: Toolchain, artifacts: Iterable[Artifact]) -> dict[str, str]:
    """Return what compiled `artifacts` and what all of them together ask of a host: the highest floors, every library.

    The compiler's path is no part of it: paths of a builder do not leave it in a bundle; the build's log has it.
    """
    facts = {"torch": toolchain.torch, "compiler": toolchain.compiler, "libc": toolchain.libc}
    facts |= {name: value for name, value in (("triton", toolchain.triton), ("cuda", toolchain.cuda)) if value}
    made = tuple(artifacts)
    for name in ("march", "simdlen", "isa"):
        if found := sorted({one.facts[name] for one in made if name in one.facts}):
            facts[name] = ", ".join(found)
    elves = [one.elf for one in made if one.elf is not None]
    if elves:
        facts["libc_floor"] = highest(filter(None, (elf.libc_floor for elf in elves))) or ""
        facts["libstdcxx_floor"] = highest(filter(None, (elf.libstdcxx_floor for elf in elves))) or ""
        facts["needed"] = ", ".join(dict.fromkeys(name for elf in elves for name in elf.needed))
    return facts


def asked_names(library: Path, family: str) -> tuple[str, ...]:
    """Return the names of every tensor that a compiled program asks for. Raises LoadFailed."""
    place = "cpu" if family == "cpu" else "cuda:0"
    container = Container.open(library, device=place, cubins=library.parent.parent / "cubin", num_models=1)
    try:
        return tuple(slot.fqn or slot.name for slot in container.constants)
    finally:
        container.close()


def file_of(directory: Path, path: str) -> File:
    """Hash one file of an artifact."""
    blob = blob_of(directory / path)
    return File(path=path, digest=blob.digest, size_bytes=blob.size_bytes)


def region_report(unit: Unit, coverage: str, exported: Exported, package: CompiledPackage) -> RegionReport:
    return RegionReport(
        region=unit.region,
        instances=len(unit.instances),
        coverage=coverage,
        export_seconds=round(exported.seconds, 3),
        compile_seconds=round(package.seconds, 3),
        library_bytes=package.library.stat().st_size,
        strict_export=exported.strict,
        flops=exported.flops,
        graph_nodes=exported.nodes,
        kernels=package.kernels,
    )
