"""Every child of a proof: reads its job, does it, writes its claim. `aot.qualify.__main__` is its entry.

Exit code 0: a claim was written, an error's included. A crash leaves none, which is how the parent knows.
"""

import traceback
from pathlib import Path

from aot.errors import AotError, QualificationFailed
from aot.pause import import_for_good
from aot.qualify.job import CLAIM_FILE, Claim, Comparisons, ProofJob, Task, Tell
from aot.schema.codec import decode, encode
from aot.schema.wire.errors import ErrorBody


def main(job_file: Path, tell: Tell) -> int:
    """Run the job in `job_file`."""
    job = decode(job_file.read_bytes(), ProofJob, what="proof job")
    try:
        claim = run_job(job, tell)
    except AotError as error:
        claim = Claim(error=ErrorBody.of(error))
    except Exception as error:  # the source's own code runs here: its errors are answers
        claim = Claim(error=ErrorBody.of(_failure(error)))
    temporary = Path(job.out) / f"{CLAIM_FILE}.part"
    temporary.write_bytes(encode(claim))
    temporary.rename(Path(job.out) / CLAIM_FILE)
    return 0


def run_job(job: ProofJob, tell: Tell) -> Claim | Comparisons:
    """Do the work of one job."""
    if job.cpu is not None or job.task not in (Task.EAGER, Task.START):  # those two are timed, and are as a pod is
        import_for_good(_import_torch)
    if job.task is Task.COMPARE:
        from aot.qualify.compare import compare_cases

        return compare_cases(job)
    from aot.qualify.opening import open_source

    program = open_source(job)
    if job.task is Task.NUMERICS:
        from aot.bundle import read_bundle
        from aot.qualify.canary import make_canaries
        from aot.qualify.numerics import Numerics

        bundle = read_bundle(Path(job.bundle))
        numerics = Numerics(job, program, bundle, tell)
        numerics.run()
        # Emulated, the same cases are run once more; what travels with the bundle was made on the host itself.
        canaries = make_canaries(numerics, job, program, bundle) if job.checked and job.cpu is None else ()
        return Claim(
            cases=tuple(numerics.cases),
            speeds=tuple(numerics.speeds),
            omissions=tuple(numerics.omissions),
            canaries=canaries,
        )
    from aot.qualify.start import run_start

    return run_start(job, program, tell)


def _import_torch() -> None:
    import torch  # noqa: F401


def _failure(error: Exception) -> QualificationFailed:
    frames = traceback.format_exception(error)
    return QualificationFailed(
        f"{type(error).__name__}: {str(error)[:500]}",
        hint="call the module with its own example inputs, at every size that the coverage names",
        details={"traceback": "".join(frames)[-4000:]},
    )
