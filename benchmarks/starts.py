"""Times fresh processes from outside: the clock starts before the spawn and stops when `first-output` arrives."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.sandbox import Limits, run_child
from aot.sandbox.exit import Program

ROOT = Path(__file__).resolve().parents[1]
_NOT_KEPT = ("TMPDIR", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Start:
    """One process: seconds to its first output, by the clock and of CPU time, and what it said, its last words too."""

    seconds: float
    cpu_seconds: float
    first: dict[str, Any]
    measured: dict[str, Any]
    done: dict[str, Any]
    stderr: str = ""


def start_child(arguments: Sequence[str], environ: Mapping[str, str]) -> Start:
    """Run one child to its end. Raises RuntimeError with the end of its stderr when it fails."""
    return start_command([sys.executable, "-m", "benchmarks.child", *arguments], environ)


def start_command(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path = ROOT) -> Start:
    """Run `command`, of which a child comes, to its end. Raises RuntimeError with what it said last when it fails."""
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=dict(environ), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        said: dict[str, dict[str, Any]] = {}
        seconds = 0.0
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "first-output":
                seconds = time.perf_counter() - started
            said[event["event"]] = event
        code = process.wait()
        errors.seek(0)
        tail = errors.read().decode(errors="replace")[-3000:]
        if code != 0 or "done" not in said:
            raise RuntimeError(f"{' '.join(command[1:])} ended with {code}:\n{tail}")
    first = said["first-output"]
    return Start(seconds, first["cpu_seconds"], first, said.get("measured", {}), said["done"], tail)


def count_processes(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Run one child and return every program that it started, counted from outside. Raises as `count_programs`."""
    command = [sys.executable, "-m", "benchmarks.child", *arguments]
    return [program.path for program in count_programs(command, environ)]


def count_programs(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path = ROOT) -> tuple[Program, ...]:
    """Run `command` and return every program that it and what it starts have started, counted from outside.

    Raises RuntimeError where it fails: what had been started by then is no count of anything.
    """
    with tempfile.TemporaryDirectory() as scratch:
        ended = run_child(
            command,
            cwd=cwd,
            env=environ,
            # Torch's compile workers count as well: as many as there are cores, half a gigabyte each.
            limits=Limits(
                wall_seconds=600, memory_bytes=64 << 30, processes=1024, output_bytes=64 << 20, disk_bytes=None
            ),
            sandbox=None,
            writable=(Path(scratch),),
            count_processes=True,
        )
    if ended.code != 0 or ended.processes is None:
        raise RuntimeError(
            f"{' '.join(command[1:])} ended with {ended.kind} {ended.code}:\n{ended.stderr_tail[-3000:]}"
        )
    return ended.processes.programs


def clean_environ(cache: Path, **extra: str) -> dict[str, str]:
    """An environment with compiler caches of its own below `cache`, and nothing of ours but `extra`.

    Bytecode is written, as it is for an installed package: this tree is one that is run from its sources.
    Raises ValueError for a path with white space, which Inductor puts unquoted into its compiler's command line.
    """
    if any(letter.isspace() for letter in str(cache)):
        raise ValueError(f"a compiler cache cannot lie in {str(cache)!r}: the path has white space")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AOT_", "TORCHINDUCTOR_", "TRITON_")) and name not in _NOT_KEPT
    }
    (cache / "tmp").mkdir(parents=True, exist_ok=True)
    return {**kept, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TMPDIR": str(cache / "tmp"), **extra}


def median_ratio(ours: Sequence[float], eager: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of the paired ratios."""
    ratios = sorted(one / other for one, other in zip(ours, eager, strict=True))
    return statistics.median(ratios), ratios[0], ratios[-1]
