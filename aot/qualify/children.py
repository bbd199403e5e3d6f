"""The parent's side of one child: its directories, its empty environment, its end in words. No torch here."""

import os
import re
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aot.compile.layout import package_place
from aot.compile.toolchain import SEARCH_PATH
from aot.config import whole_environ
from aot.emulator import Emulator
from aot.environment.cards import card_variables
from aot.errors import CompileStopped, MalformedDocument, QualificationFailed
from aot.qualify.job import CLAIM_FILE, JOB_FILE, ProofJob, Task
from aot.sandbox import Bubblewrap, ChildExit, OnEvent, ShouldStop, capped, find_room, python_path, run_child
from aot.sandbox import Limits as ChildLimits
from aot.sandbox.exit import ExitKind
from aot.schema.codec import Document, decode, encode
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits
from aot.source import OpenedSource

OUTPUT_BYTES = 64 << 20
CLAIM_BYTES = 16 << 20
_WHOLE_TAIL = 8 << 10  # a longer one may begin in the middle of a line
_IMPORT_LINE = re.compile(r"^import time: .*\n?", re.MULTILINE)

C = TypeVar("C", bound=Document)


@dataclass(frozen=True)
class Watched:
    """One child that ended, with what was seen of it from outside. `steps`: seconds from its start to each event.

    `task` names it in words, its emulated CPU included.
    """

    task: str
    ended: ChildExit
    out: Path
    stderr: Path
    steps: Mapping[str, float]
    last_step: str


@dataclass(frozen=True, kw_only=True)
class Proving:
    """What all children of one proof have in common."""

    source: OpenedSource
    scratch: Path
    recipe: Recipe
    profile: Profile
    limits: Limits
    sandbox: Bubblewrap | None
    devices: Sequence[Path] = ()
    emulator: Emulator | None = None  # what the children run on, where that is not this host
    held_back: Mapping[str, str] = field(default_factory=dict)  # variables that keep torch to the profile's level
    on_event: OnEvent = field(default=lambda event: None)
    should_stop: ShouldStop = field(default=lambda: None)

    def source_fields(self) -> dict[str, Any]:
        """Return the fields of a job that name the source, and where its program is to be."""
        return {
            "tree": str(self.source.tree.absolute()) if self.source.tree else "",
            "entry": self.source.entry,
            "program": str(self.source.program.absolute()) if self.source.program else "",
            "weights": tuple(str(path.absolute()) for path in self.source.weights),
            "device": self.profile.torch_device,
        }

    def shown(self) -> tuple[Path, ...]:
        """Return the places of the source that a child may read."""
        places = (self.source.tree, self.source.program, *self.source.weights)
        return tuple(place.absolute() for place in places if place is not None)

    def run(self, task: Task, *, name: str = "", readable: Sequence[Path] = (), **fields: Any) -> Watched:
        """Run one child to its end, in a directory called `name` (the task's name when left out).

        Raises CompileStopped, and nothing for a child that failed.
        """
        place = self.scratch / (name or task)
        private = place / "private"
        for part in ("out", "home", "tmp", "cache"):
            (private / part).mkdir(parents=True, exist_ok=True)
        self._write_job(place / JOB_FILE, task=task, out=str(private / "out"), **fields)
        steps: dict[str, float] = {}
        last = ""

        def note(event: Mapping[str, Any]) -> None:
            nonlocal last
            last = str(event.get("step", ""))[:300]
            steps.setdefault(last, time.monotonic() - started)
            self.on_event({"phase": "qualifying", "step": f"{self._spell(task)}: {last}"})

        started = time.monotonic()
        ended = run_child(
            self._command([sys.executable, *_flags(task), "-m", "aot.qualify", str(place / JOB_FILE)]),
            cwd=private / "home",
            env=self._environment(private),
            limits=self._limits(),
            sandbox=self.sandbox,
            readable=(package_place(), place / JOB_FILE, *readable),
            writable=(private,),
            devices=() if task is Task.COMPARE else self.devices,
            stdout=place / "stdout.txt",
            stderr=place / "stderr.txt",
            on_event=note,
            should_stop=self.should_stop,
            count_processes=task in (Task.EAGER, Task.START),
        )
        if ended.kind is ExitKind.STOPPED:
            raise CompileStopped(f"the proof was stopped: {ended.stop_reason}")
        return Watched(self._spell(task), ended, private / "out", place / "stderr.txt", steps, last)

    def _write_job(self, place: Path, **fields: Any) -> None:
        cpu = self.emulator.cpu if self.emulator else None
        # What a child plans with, for its references: no more than there is.
        memory_bytes = capped(self.limits.most_memory_bytes, find_room())
        place.write_bytes(encode(ProofJob(memory_bytes=memory_bytes, cpu=cpu, **fields)))

    def _command(self, argv: Sequence[str]) -> Sequence[str]:
        return self.emulator.wrap(argv) if self.emulator else argv

    def _spell(self, task: Task) -> str:
        """Name a child in words: "start", or "start (emulated cpu:x86-64-v3)"."""
        return f"{task} (emulated {self.emulator.cpu.capability})" if self.emulator else str(task)

    def _environment(self, private: Path) -> Mapping[str, str]:
        """The whole environment: what the recipe sets, under what keeps every cache empty and private."""
        needed = {
            "PATH": SEARCH_PATH,
            "HOME": str(private / "home"),
            "TMPDIR": str(private / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(private / "cache"),
            "TRITON_CACHE_DIR": str(private / "cache" / "triton"),
            "PYTHONPATH": python_path(),
            # Eager and compiled starts must meet the same bytecode, and neither may write it for the other.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
        }
        if self.profile.threads is not None:
            needed["OMP_NUM_THREADS"] = str(self.profile.threads)
        if self.profile.capability.family != "cpu":
            needed |= card_variables(whole_environ())
        return {**self.recipe.environment, **needed, **self.held_back}

    def _limits(self) -> ChildLimits:
        return ChildLimits(
            wall_seconds=self.limits.wall_seconds,
            memory_bytes=self.limits.most_memory_bytes,
            processes=self.limits.processes,
            output_bytes=OUTPUT_BYTES,
            disk_bytes=self.limits.most_disk_bytes,
        )


def read_claim(watched: Watched, kind: type[C]) -> C:
    """Return what the child wrote down. Raises QualificationFailed when it crashed or says that it failed."""
    if not watched.ended.succeeded:
        raise explain_exit(watched)
    try:
        claim = decode(read_plain(watched.out / CLAIM_FILE, CLAIM_BYTES), kind, what=f"claim of {watched.task}")
    except (OSError, MalformedDocument) as error:
        raise QualificationFailed(
            f"the {watched.task} child ended without a claim that can be read: {error}",
            hint="a source must not end the process, nor write into its directories",
            details={"log": log_of(watched.ended)},
        ) from error
    body = getattr(claim, "error", None)
    if body is not None:
        step = f" ({watched.last_step})" if watched.last_step else ""
        raise QualificationFailed(
            f"the {watched.task} child failed{step}: {body.message}",
            hint=body.hint,
            details={"error": body.code, "log": log_of(watched.ended), **body.details},
        )
    return claim


def explain_exit(watched: Watched) -> QualificationFailed:
    """Return the failure that a child's violent end means; message and details name the signal or the limit."""
    ended = watched.ended
    where = f" at: {watched.last_step}" if watched.last_step else ""
    details = {"exit": ended.kind.value, "signal": ended.signal, "step": watched.last_step, "log": log_of(ended)}
    hint = _HINTS.get(ended.kind, ended.group_hint)
    if ended.kind is ExitKind.OUT_OF_MEMORY:
        hint = f"{ended.memory_hint}, or narrow the coverage"
    text = f"the {watched.task} child {ended.describe()}{where}{ended.group_words}"
    return QualificationFailed(text, hint=hint, details=details)


_HINTS = {
    ExitKind.TIMED_OUT: "raise the limit wall_seconds, or narrow the coverage",
    ExitKind.LOST: "the host itself ran out of memory, or somebody killed the proof: try again",
    ExitKind.TOO_MUCH_OUTPUT: "the source prints too much",
    ExitKind.TOO_MUCH_DISK: "raise the limit disk_bytes, or narrow the coverage",
}


def log_of(ended: ChildExit) -> str:
    """Return the end of the child's stderr without the interpreter's trace of imports."""
    tail = ended.stderr_tail
    if len(tail) > _WHOLE_TAIL:
        tail = tail.partition("\n")[2]  # a cut line of the trace does not look like one
    return _IMPORT_LINE.sub("", tail)[-8000:]


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return a file of a child's directory. Raises OSError for a link or a pipe, MalformedDocument when too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            raise MalformedDocument(f"{path.name} is no file of at most {most_bytes} bytes")
        return file.read(most_bytes + 1)


def _flags(task: Task) -> tuple[str, ...]:
    # No site-packages of the user, nothing importable from the working directory.
    trace = ("-X", "importtime") if task in (Task.EAGER, Task.START) else ()
    return (*trace, "-P", "-s")
