"""By function what is not taken as a package, where the recipe allows both: said in the report, never silently."""

import shutil
from pathlib import Path

import msgspec
import torch

from aot.compile.artifacts import PhaseLog
from aot.compile.child import open_job
from aot.compile.function.make import FunctionMaker
from aot.compile.job import ARTIFACTS_DIRECTORY, CompileJob, CompileOutcome
from aot.compile.program import place_program
from aot.errors import AotError, SourceNotExportable
from aot.schema.recipe import Route
from aot.schema.report import Phase


def make_instead(job: CompileJob, refusal: SourceNotExportable, *, isa: str, progress: PhaseLog) -> CompileOutcome:
    """Return the outcome of the route function, with why `refusal` says that the route package cannot take it.

    Raises SourceNotExportable with both reasons where neither can, and what `FunctionMaker.make` raises.
    """
    # Regions and points before the one that failed have left their files, and export may have changed the module.
    shutil.rmtree(Path(job.out) / ARTIFACTS_DIRECTORY, ignore_errors=True)
    with progress.phase(Phase.LOADING, f"again, for route function: {refusal.message}"):
        torch.manual_seed(job.seed)
        program = place_program(open_job(job), job.profile.torch_device)
    try:
        outcome = FunctionMaker(job, program, isa=isa, progress=progress).make()
    except SourceNotExportable as error:
        raise _neither(refusal, error) from error
    report = msgspec.structs.replace(outcome.report, refused_routes={Route.PACKAGE: _reason(refusal)})
    return msgspec.structs.replace(outcome, report=report)


def _reason(error: AotError) -> str:
    frame = error.details.get("frame")
    return f"{error.message} ({frame})" if frame and str(frame) not in error.message else error.message


def _neither(package: SourceNotExportable, function: SourceNotExportable) -> SourceNotExportable:
    return SourceNotExportable(
        f"neither route takes the program; package: {package.message}; function: {function.message}",
        hint=package.hint,
        details={**package.details, "refused_routes": {"package": _reason(package), "function": _reason(function)}},
    )
