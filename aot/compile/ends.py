"""What the end of a compile child means: one error for each way, with what was seen of memory from outside."""

import re

from aot.compile.job import CompileOutcome
from aot.errors import (
    AotError,
    BackendFailed,
    CompileFailed,
    CompileOutOfMemory,
    CompileStopped,
    CompileTimedOut,
    InvalidInput,
    SourceNotLoadable,
)
from aot.sandbox import ChildExit, ExitKind
from aot.schema.codec import encode
from aot.schema.report import Phase
from aot.schema.spec import Limits

DETAILS_BYTES = 64 << 10
# How g++, Triton and Python's subprocess say that SIGKILL ended what they had started.
_KILLED = re.compile(r"\bKilled\b|\bSIGKILL\b|\bsignal 9\b|(returned|code|status) -9\b")


def explain_exit(ended: ChildExit, *, phase: Phase, limits: Limits) -> CompileFailed | None:
    """Return the error that a child's end means; None when it ended by itself with an outcome."""
    in_phase = f"while {phase}"
    match ended.kind:
        case ExitKind.EXITED if ended.code == 0:
            return None
        case ExitKind.TIMED_OUT:
            text = f"the build took longer than {limits.wall_seconds:.0f} s, {in_phase}"
            return failure_of(CompileTimedOut, text, "raise the limit wall_seconds, or compile by regions", ended)
        case ExitKind.OUT_OF_MEMORY:
            text = f"the build {ended.memory_words}; it was {phase}"
            return failure_of(CompileOutOfMemory, text, f"{ended.memory_hint}, or compile by regions", ended)
        case ExitKind.LOST:
            there = f"; {ended.room}" if ended.room is not None else ""
            text = f"the build was killed from outside, {in_phase}, most likely for its memory{there}"
            return failure_of(CompileOutOfMemory, text, "raise memory_bytes, or build on a larger worker", ended)
        case ExitKind.STOPPED:
            return failure_of(CompileStopped, f"the build was stopped: {ended.stop_reason}", "", ended)
        case _:
            own = phase is Phase.LOADING
            used = {
                ExitKind.TOO_MUCH_DISK: f"wrote more than {limits.most_disk_bytes} bytes to disk",
                ExitKind.TOO_MANY_PROCESSES: f"ran more than {limits.processes} processes",
            }
            text = f"the child {used.get(ended.kind, ended.describe())} {in_phase}{ended.group_words}"
            hint = "run the factory by itself; its output and its processes count" if own else "see the log"
            hint = "; ".join(filter(None, (hint, ended.group_hint)))
            return failure_of(SourceNotLoadable if own else BackendFailed, text, hint, ended)


def failure_of(kind: type[CompileFailed], text: str, hint: str, ended: ChildExit) -> CompileFailed:
    details = {"log": ended.stderr_tail, "signal": ended.signal, "exit": ended.kind.value, "backend": "inductor"}
    return kind(text, hint=hint, details=details)


def as_compile_error(outcome: CompileOutcome, ended: ChildExit) -> AotError:
    """Return the child's error. It runs other people's code, so only what a compile may say is believed."""
    assert outcome.error is not None
    error = outcome.error.to_error()
    if not isinstance(error, (InvalidInput, CompileFailed)):
        error = BackendFailed(error.message, hint=error.hint, details={"backend": "inductor", **error.details})
    if isinstance(error, BackendFailed):
        error = _for_want_of_memory(error, ended)
    if len(encode(error.details)) > DETAILS_BYTES:
        error.details = {"left_out": "the details were too long"}
    error.details.setdefault("log", ended.stderr_tail)
    error.details.setdefault("phases", dict(outcome.report.phases))
    return error


def _for_want_of_memory(error: BackendFailed, ended: ChildExit) -> CompileFailed:
    """Return what the failure of a compiler means that the kernel has ended, which the child could only see fail."""
    said = f"{error.message}\n{error.details.get('log', '')}\n{ended.stderr_tail}"
    if ended.ended_by_kernel or (ended.ended_in_group and _KILLED.search(said)):
        there = f": {ended.room}" if ended.room is not None else ""
        text = f"the kernel ended a process of the build for want of memory{there}; {error.message}"
        return CompileOutOfMemory(text, hint=f"{ended.memory_hint}, or compile by regions", details=error.details)
    if not ended.ended_in_group:
        return error
    hint = "; ".join(filter(None, (error.hint, ended.group_hint)))
    return BackendFailed(f"{error.message}{ended.group_words}", hint=hint, details=error.details)
