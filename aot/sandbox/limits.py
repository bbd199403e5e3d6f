"""What a child may use, and how its end is told. Stands between the callers of `run_child` and its supervisor."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from aot.errors import InvalidInput


class SandboxKind(StrEnum):
    """`process` has limits but no isolation: the child sees the files and the network of its parent."""

    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


class ExitKind(StrEnum):
    """Why a child ended. All but the first two were brought about from outside the child."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MUCH_OUTPUT = "too_much_output"
    TOO_MUCH_DISK = "too_much_disk"
    TOO_MANY_PROCESSES = "too_many_processes"
    STOPPED = "stopped"
    # Somebody killed the supervisor (most likely the kernel's OOM killer), and the child with it.
    LOST = "lost"


class CountedBy(StrEnum):
    """`ptrace` misses nothing; `polling` sees only what lives for a tenth of a second."""

    PTRACE = "ptrace"
    POLLING = "polling"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the whole tree of a child may use; the tree is killed beyond it.

    `memory_bytes` bounds resident memory, sampled ten times a second: address space is not bounded, because torch
    and CUDA reserve far more than they touch. `output_bytes` bounds standard output and error together, and the
    event lines once more. `disk_bytes` bounds the writable places together, sampled at most once a second.
    """

    wall_seconds: float
    memory_bytes: int
    processes: int
    output_bytes: int
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise InvalidInput(f"limit {name} must be above 0, found {value}")


@dataclass(frozen=True)
class Program:
    """One `execve`: the file that runs (the interpreter, for a script) and the beginning of its arguments."""

    path: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProcessCount:
    """What the child started besides itself, counted from outside. The child's own program is not in it.

    `forks` counts new processes, never threads; None means that they could not be counted (`why_not` says why, and
    `programs` is then a lower bound). `execs` counts all; `programs` keeps the first 1,000 of them.
    """

    counted_by: CountedBy
    forks: int | None
    execs: int
    programs: tuple[Program, ...]
    why_not: str = ""

    @property
    def proves_none(self) -> bool:
        """True when it is certain that the child started no other process and no other program."""
        return self.counted_by is CountedBy.PTRACE and self.forks == 0 and self.execs == 0


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended and what it used.

    `code` is set only for `exited`, `signal` ("SIGSEGV") only for `signaled`. Without process counting, bubblewrap
    tells a signal as exit code 128 + n, which is then read as the signal. `max_rss_bytes` is the highest sample of
    the tree's resident memory (shared pages counted once where the kernel tells), and at least the peak of its
    largest process. Tails are the end of each stream. `survivors` counts processes that SIGKILL could not end in
    ten seconds. `garbled_lines` counts event lines that were not JSON objects.
    """

    kind: ExitKind
    code: int | None
    signal: str | None
    stop_reason: str | None
    wall_seconds: float
    cpu_seconds: float
    max_rss_bytes: int
    stdout_tail: str
    stderr_tail: str
    processes: ProcessCount | None
    sandbox: SandboxKind
    survivors: int = 0
    garbled_lines: int = 0

    @property
    def succeeded(self) -> bool:
        """True when the child ended by itself with code 0."""
        return self.kind is ExitKind.EXITED and self.code == 0

    def describe(self) -> str:
        """One phrase for reports: `exited with code 3`, `died of SIGSEGV`, `out of memory`, `stopped: lease lost`."""
        match self.kind:
            case ExitKind.EXITED:
                return f"exited with code {self.code}"
            case ExitKind.SIGNALED:
                return f"died of {self.signal}"
            case ExitKind.STOPPED:
                return f"stopped: {self.stop_reason}"
            case other:
                return other.value.replace("_", " ")

    @classmethod
    def from_report(cls, report: Mapping[str, Any], **known: Any) -> Self:
        """Parse the supervisor's report; `known` holds the fields that only the parent knows."""
        counted = report["processes"]
        processes = counted and ProcessCount(
            counted_by=CountedBy(counted["counted_by"]),
            forks=counted["forks"],
            execs=counted["execs"],
            programs=tuple(Program(path, tuple(argv)) for path, argv in counted["programs"]),
            why_not=counted["why_not"],
        )
        fields = {name: value for name, value in report.items() if name not in ("kind", "processes", "failure")}
        return cls(kind=ExitKind(report["kind"]), processes=processes, **fields, **known)
