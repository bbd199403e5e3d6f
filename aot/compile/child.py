"""The compile child: opens a source, exports and compiles each region at each point, writes the outcome.

Runs as `python -m aot.compile JOB.json` inside the sandbox, from an empty environment. What it says is claimed, not
proven: the parent hashes the files again, and qualification runs them.
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aot.compile.job import OUTCOME_FILE, CompileJob, CompileOutcome, JobKind
from aot.compile.options import check_options, cpu_capability
from aot.compile.program import Program, open_factory, place_program
from aot.errors import AotError, InvalidProfile, SourceNotExportable
from aot.pause import import_for_good
from aot.recipes import check_recipe
from aot.recipes.check import PACKAGE_THEN_FUNCTION
from aot.sandbox.events import write_event
from aot.schema.codec import decode, encode
from aot.schema.profile import Profile
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Phase
from aot.schema.wire.errors import ErrorBody


def main(job_file: Path, *, events: int | None) -> int:
    """Run the job in `job_file`, telling progress to the descriptor `events`. Exit code 0: there is an outcome."""
    job = decode(job_file.read_bytes(), CompileJob, what="compile job")
    progress = Progress(events)
    try:
        outcome = run_job(job, progress)
    except AotError as error:
        outcome = CompileOutcome(error=ErrorBody.of(error), report=CompileReport(phases=progress.seconds))
    write_outcome(outcome, Path(job.out))
    return 0


def write_outcome(outcome: CompileOutcome, out: Path) -> None:
    """The outcome appears whole or not at all: a crash leaves none, which is how the parent knows."""
    temporary = out / f"{OUTCOME_FILE}.part"
    with temporary.open("wb") as file:
        file.write(encode(outcome))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(out / OUTCOME_FILE)


@dataclass
class Progress:
    """Tells the parent where the work stands, and keeps how long each phase took, less the phases inside it."""

    events: int | None
    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[tuple[Phase, str]] = field(default_factory=list)
    _inside: float = 0.0  # seconds of the phases that have begun and ended within the one that is open

    @contextmanager
    def phase(self, phase: Phase, step: str = "") -> Iterator[None]:
        """Be in `phase` inside the block; where it lies in another one, that one is told again at its end."""
        self._open.append((phase, step))
        self._tell()
        started, outer, self._inside = time.monotonic(), self._inside, 0.0
        try:
            yield
        finally:
            spent = time.monotonic() - started
            own = spent - self._inside
            self.seconds[phase.value] = round(self.seconds.get(phase.value, 0.0) + own, 3)
            self._inside = outer + spent
            self._open.pop()
            self._tell()

    def _tell(self) -> None:
        if self.events is not None and self._open:
            phase, step = self._open[-1]
            write_event(self.events, {"phase": phase.value, "step": step})


def run_job(job: CompileJob, progress: Progress) -> CompileOutcome:
    """Do the whole work of one job. Raises the families InvalidInput and CompileFailed."""
    if job.kind in (JobKind.KERNEL, JobKind.KEPT):
        from aot.compile.kernels import again, child

        return (child.make_kernels if job.kind is JobKind.KERNEL else again.make_again)(job, progress)
    check_recipe(job.recipe)
    with progress.phase(Phase.LOADING):
        import_for_good(lambda: _import_compiler(job.profile))
        import torch

        from aot.compile.artifacts import ArtifactMaker
        from aot.compile.card import check_card
        from aot.compile.cutlass import import_cutlass
        from aot.compile.torch_inductor import known_options

        check_card(job.profile)
        check_options(job.recipe.options, known_options())
        torch.manual_seed(job.seed)
        program = open_job(job)
        # It puts stand-ins for scipy and other packages on Python's path: a model that looks for those was imported.
        import_cutlass(job.recipe)
        _start_workers(job.profile)
        program = place_program(program, job.profile.torch_device)
    isa = prepare_compiler(job)
    if job.recipe.routes == (Route.FUNCTION,):
        from aot.compile.function.make import FunctionMaker

        return FunctionMaker(job, program, isa=isa, progress=progress).make()
    try:
        return ArtifactMaker(job, program, isa=isa, progress=progress).make()
    except SourceNotExportable as error:
        if job.recipe.routes != PACKAGE_THEN_FUNCTION or not job.tree:
            raise
        refusal = _without_frames(error)
    # A card, or the limit on memory, may hold the model once only, and it is opened again.
    del program
    gc.collect()
    from aot.compile.function.instead import make_instead

    return make_instead(job, refusal, isa=isa, progress=progress)


def _import_compiler(profile: Profile) -> None:
    import torch

    if torch.__version__ != profile.toolchain.torch:
        raise InvalidProfile(
            f"profile {profile.name} is for torch {profile.toolchain.torch}, this is {torch.__version__}",
            hint="register the worker again: its torch has changed",
        )
    _start_workers(profile)
    from aot.compile import artifacts, torch_inductor  # noqa: F401

    torch_inductor.load_compiler()


def _start_workers(profile: Profile) -> None:
    """Early, and again once the source is open, which may have set what they read."""
    from aot.compile import torch_inductor

    if profile.capability.family != "cpu":
        torch_inductor.start_workers()


def _without_frames(error: SourceNotExportable) -> SourceNotExportable:
    """The error itself, with nothing of what it came through: the frames of its tracebacks hold the program."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def open_job(job: CompileJob) -> Program:
    """Open the source that `job` names, with its weights.

    Raises SourceNotLoadable, SourceNotExportable, InvalidSpec.
    """
    from aot.compile.pins import refuse_unpinned
    from aot.compile.refuse import refuse_program
    from aot.compile.weights import load_weights

    if job.kind is JobKind.WARM:
        from aot.compile.headers import warming_program

        return warming_program()
    if job.program:
        from aot.compile.strip import open_program

        program = open_program(Path(job.program), seed=job.seed)
    else:
        program = open_factory(Path(job.tree), job.entry)
        refuse_unpinned(program.module, job.requirements)
    refuse_program(program)
    if job.weights:
        load_weights(program.module, [Path(file) for file in job.weights])
    return program


def prepare_compiler(job: CompileJob) -> str:
    """Pin the instruction set and share the headers; return the set's name."""
    from aot.compile.torch_checks import catch_checks
    from aot.compile.torch_inductor import pin_instruction_set, share_headers, use_header_directory
    from aot.compile.torch_threads import adapt_to_threads

    private = Path(job.build) / "headers"
    if job.headers:
        share_headers(Path(job.headers), private)
    use_header_directory(private)
    catch_checks()
    if job.profile.threads is None:
        adapt_to_threads()
    return pin_instruction_set(cpu_capability(job.profile))
