"""From a signal to its likely cause: what a crash of a proof usually means, told from the artifacts' own facts."""

from collections.abc import Sequence

from aot.errors import QualificationFailed
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability

STATIC_LIBSTDCXX = (
    "the compiler ({compiler}) linked libstdc++ into the artifact, and two copies in one process crash it: "
    "build with a g++ that links libstdc++ dynamically (see CXX)"
)


def with_hint(
    error: QualificationFailed,
    artifacts: Sequence[Artifact],
    *,
    compiler: str = "",
    cpu: Capability | None = None,
) -> QualificationFailed:
    """Return the failure with what its signal points to; unchanged where it has none, or a hint of its own.

    `compiler` is the one that made the artifacts ("g++ 13.2.0"); `cpu` the level of the CPU that it happened on, where
    that was emulated.
    """
    signal = error.details.get("signal")
    if not signal or error.hint:
        return error
    return QualificationFailed(
        error.message, hint=_hint_for(str(signal), artifacts, compiler, cpu), details=error.details
    )


def _hint_for(signal: str, artifacts: Sequence[Artifact], compiler: str, cpu: Capability | None) -> str:
    match signal:
        case "SIGILL":
            levels = ", ".join(sorted({str(artifact.capability) for artifact in artifacts}))
            if cpu is not None:
                return f"the code says that it is for {levels}, and holds an instruction that a CPU of {cpu} has not"
            return f"the code was generated for a higher level than this CPU has: it says {levels}"
        case "SIGSEGV" | "SIGABRT" | "SIGBUS":
            if any(artifact.elf is not None and artifact.elf.static_libstdcxx for artifact in artifacts):
                return STATIC_LIBSTDCXX.format(compiler=compiler or "one that is not recorded")
            return "the compiled code reads or writes out of bounds, or was built against another torch"
        case "SIGKILL":
            return "somebody killed the process, most likely for its memory: raise the limit memory_bytes"
        case "SIGFPE":
            return "the compiled code divides an integer by zero"
        case _:
            return "run the source by itself under a debugger"
