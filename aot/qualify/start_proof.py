"""What the two start children say when they are compared: the start proof, or why there is none. No torch here."""

from collections import Counter

from aot.errors import QualificationFailed
from aot.qualify.children import Watched, log_of, read_claim
from aot.qualify.imports import compiler_modules, read_imports
from aot.qualify.job import OUTPUT, Claim
from aot.sandbox import CountedBy, ProcessCount
from aot.schema.profile import Profile
from aot.schema.report import StartProof


def prove_start(eager: Watched, start: Watched, *, profile: Profile, imports_compiler: bool = False) -> StartProof:
    """Compare a pod's start with the eager start of the same program.

    Processes and modules count beyond what eager has: a program that runs `ldconfig` while it is imported does so
    with and without us. Where processes could not be counted (`counted_by` is "polling"), those that were seen count.
    `imports_compiler`: of the route `function`, which is loaded by Dynamo's and Inductor's own code.
    Raises QualificationFailed for a crash, a process, a compiler's module, or a first call that ran eagerly.
    """
    plain, claim = read_claim(eager, Claim), read_claim(start, Claim)
    if claim.torch != profile.toolchain.torch:
        raise QualificationFailed(
            f"the profile says torch {profile.toolchain.torch}, the proof ran on {claim.torch}",
            hint="register the worker again: its torch has changed",
        )
    if claim.counters.get("compiled", 0) < 1 or claim.counters.get("eager", 0):
        raise QualificationFailed(
            f"the first call did not run compiled code throughout: {claim.counters}",
            hint="the first example must lie inside the coverage",
            details={"counters": dict(claim.counters)},
        )
    proof = StartProof(
        seconds=_first_output(start),
        eager_seconds=_first_output(eager),
        processes=extra_processes(eager.ended.processes, start.ended.processes),
        counted_by=str(start.ended.processes.counted_by if start.ended.processes else CountedBy.POLLING),
        compiler_modules=_extra_modules(eager, plain, start, claim),
        peak_memory_bytes=start.ended.max_rss_bytes,
    )
    if proof.processes or (proof.compiler_modules and not imports_compiler):
        raise _refuse(proof, start)
    return proof


def extra_processes(eager: ProcessCount | None, start: ProcessCount | None) -> tuple[str, ...]:
    """Return the programs that only the start with the bundle ran, and forks of it that ran none, for people."""
    if start is None:
        return ()
    before = Counter(program.path for program in eager.programs) if eager else Counter()
    extra: list[str] = []
    for program in start.programs:
        if before[program.path]:
            before[program.path] -= 1
        else:
            extra.append(" ".join((program.path, *program.argv[1:]))[:200])
    forks = (start.forks or 0) - ((eager.forks or 0) if eager else 0)
    bare = forks - (start.execs - (eager.execs if eager else 0))
    return (*extra, *([f"{bare} fork(s) without a program"] if bare > 0 else []))


def _extra_modules(eager: Watched, plain: Claim, start: Watched, claim: Claim) -> tuple[str, ...]:
    traced = read_imports(start.stderr)
    if "torch" not in traced:
        raise QualificationFailed(
            "the imports of the start proof could not be observed",
            hint="a source must not close or redirect standard error before it imports torch",
            details={"log": log_of(start.ended)},
        )
    found = compiler_modules(traced | set(claim.modules))
    return tuple(sorted(found - compiler_modules(read_imports(eager.stderr) | set(plain.modules))))


def _first_output(watched: Watched) -> float:
    if OUTPUT not in watched.steps:
        raise QualificationFailed(
            f"the {watched.task} child never said that it had an output",
            hint="a source must not touch the event pipe",
            details={"log": log_of(watched.ended)},
        )
    return round(watched.steps[OUTPUT], 3)


def _refuse(proof: StartProof, start: Watched) -> QualificationFailed:
    what = [f"{len(proof.processes)} process(es), the first: {proof.processes[0]}"] if proof.processes else []
    if proof.compiler_modules:
        what.append(f"{len(proof.compiler_modules)} compiler module(s), the first: {proof.compiler_modules[0]}")
    return QualificationFailed(
        f"a pod's start must not compile, and this one started {' and '.join(what)}",
        hint="the artifact or the source's code runs a compiler when it is loaded or first called",
        details={
            "processes": list(proof.processes),
            "modules": list(proof.compiler_modules[:50]),
            "counted_by": proof.counted_by,
            "log": log_of(start.ended),
        },
    )
