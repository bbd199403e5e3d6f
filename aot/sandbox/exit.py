"""How a child ended, what it used, and what it started: the values that `run_child` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from aot.sandbox.limits import SandboxKind
from aot.sandbox.room import Room, RoomOf


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
    ten seconds. `garbled_lines` counts event lines that were not JSON objects. `memory_limit_bytes` is what was
    asked for, and `room` the memory that there was, which bounds it; `ended_by_kernel`: a process of the child was,
    since memory was out before the child had come to its limit. `ended_in_group`: some process of the cgroup was, while
    the child ran, and others share the cgroup: nothing says that it was one of the child's.
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
    memory_limit_bytes: int = 0
    room: Room | None = None
    ended_by_kernel: bool = False
    ended_in_group: bool = False

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
            case ExitKind.OUT_OF_MEMORY if self.memory_limit_bytes:
                return f"out of memory: it {self.memory_words}"
            case other:
                return other.value.replace("_", " ")

    @property
    def group_words(self) -> str:
        """What to say behind a failure where it may have been somebody else's process that was ended; else empty."""
        if not self.ended_in_group:
            return ""
        there = f" ({self.room})" if self.room is not None and self.room.of is RoomOf.CGROUP else ""
        return (
            "; meanwhile the kernel ended a process of the cgroup, which other processes share, for want of memory"
            f"{there}: one of this build or of theirs"
        )

    @property
    def group_hint(self) -> str:
        """What to do about that; else empty."""
        return "try again, or give each worker a container of its own" if self.ended_in_group else ""

    @property
    def memory_words(self) -> str:
        """What `it`, a child that was out of memory, did: with the limit that was asked for, and what there was."""
        limit, room = self.memory_limit_bytes, self.room
        if self.ended_by_kernel:
            found = f"was ended by the kernel for want of memory, at {self.max_rss_bytes} bytes: its limit was {limit}"
            return found if room is None else f"{found}, and {room}"
        if room is not None and room.child_bytes < limit:
            found = f"needs more than the {room.child_bytes} bytes of memory that there are for it"
            return f"{found}: its limit was {limit}, and {room}"
        return f"needs more than {limit} bytes of memory, its limit"

    @property
    def memory_hint(self) -> str:
        """What to do about a child that was out of memory."""
        if self.ended_by_kernel or (self.room is not None and self.room.child_bytes < self.memory_limit_bytes):
            return self.room.hint if self.room is not None else "use a worker with more memory"
        return "raise the limit memory_bytes (--limit, or `limits` in aot.toml)"

    @classmethod
    def lost(cls, *, wall_seconds: float, complaint: str, **known: Any) -> Self:
        """The exit of a child whose supervisor died; `complaint` is what that one said last."""
        nothing = {"code": None, "signal": None, "stdout_tail": "", "processes": None}
        nothing |= {"cpu_seconds": 0.0, "max_rss_bytes": 0}
        return cls(kind=ExitKind.LOST, wall_seconds=wall_seconds, stderr_tail=complaint, **nothing, **known)

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
