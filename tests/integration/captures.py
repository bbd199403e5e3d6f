"""Captures of the programs that lie here, on empty caches and again on what that left: for CPUs and for cards alike."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot.capture.capture import Captured, capture
from aot.capture.command import Ended, run_command
from aot.capture.entries import Entry, Kind
from aot.capture.pins import effective_environment
from aot.capture.record import artifact_of
from aot.environment import observe_environment
from aot.pipeline.profiles import observe_profiles
from aot.sandbox import Limits, run_child
from aot.sandbox.exit import Program
from aot.schema.artifact import Artifact
from aot.schema.decision import Rejected
from aot.schema.profile import Profile
from aot.select import verdict_on
from benchmarks.capture import is_compile

HERE = Path(__file__).parent
TRAINED = str(HERE / "trained.py")
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Trial:
    """A capture, its artifact, and the programs that its second run started."""

    made: Captured
    artifact: Artifact
    programs: Sequence[Program]

    @property
    def graphs(self) -> list[Entry]:
        return [entry for entry in self.made.collected.entries if entry.kind is Kind.FXGRAPH]

    @property
    def purposes(self) -> list[str]:
        return [line.split()[1] for line in self.artifact.coverage.constraints[1:]]


@dataclass
class _Runs:
    """The first run as it is; what the second one starts is counted from outside."""

    begun: int = 0
    programs: list[Program] = field(default_factory=list)

    def __call__(self, command: Sequence[str], environ: Mapping[str, str]) -> Ended:
        self.begun += 1
        if self.begun == 1:
            return run_command(command, environ=environ, stdout=2)
        limits = Limits(wall_seconds=300.0, memory_bytes=64 << 30, processes=1024, output_bytes=16 << 20)
        started = time.monotonic()
        ended = run_child(command, cwd=Path.cwd(), env=environ, limits=limits, sandbox=None, count_processes=True)
        assert ended.succeeded and ended.processes is not None, f"{ended.describe()}\n{ended.stderr_tail[-3000:]}"
        self.programs += ended.processes.programs
        return Ended(0, time.monotonic() - started)


def captured(scratch: Path, *command: str, device: str = CPU) -> Trial:
    """Run the command twice; the second run has found everything and compiled nothing."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR_", "CXX"))}
    environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pools of processes that import torch once more
    environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # nor half a minute of trying the compiler's instruction sets
    effective = effective_environment(observe_environment(), environ, command=command)
    runs = _Runs()
    made = capture(command, environ=environ, effective=effective, scratch=scratch, run=runs)
    counted = made.second
    assert counted is not None and counted.restored > 0
    assert (counted.found, counted.compiled, counted.files) == (counted.restored, 0, 0), counted
    assert not [program.argv for program in runs.programs if is_compile(program)]
    artifact = artifact_of(made.collected, _profile(device), effective, environ=environ, seconds=made.seconds)
    return Trial(made, artifact, runs.programs)


def launched(ranks: int, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", *arguments)


def check_ranks_share(trial: Trial) -> None:
    """Every graph is there once, though two ranks have compiled it; the facts alone refuse other numbers of ranks."""
    assert len(trial.graphs) == len({entry.graph for entry in trial.graphs})
    assert (trial.purposes.count("forward:"), trial.purposes.count("backward:")) == (1, 1)
    assert trial.artifact.coverage.constraints[0].endswith("by 2 processes")
    assert ("world_size", "2") in {(guard.kind, guard.value) for guard in trial.artifact.host_guards}
    seen = observe_environment()
    for ranks, command in ((4, launched(4, TRAINED)), (1, (sys.executable, TRAINED))):
        verdict = verdict_on(trial.artifact, effective_environment(seen, os.environ, command=command))
        assert isinstance(verdict, Rejected)
        assert f"compiled for 2 processes, this is one of {ranks}" in " ".join(one.text for one in verdict.reasons)


def check_losses(place: Path, *, steps: int = 3) -> None:
    """Both runs have trained, and alike."""
    cold, warm = ([float(loss) for loss in line.split()] for line in place.read_text().splitlines())
    assert len(cold) == steps and max(abs(one - other) for one, other in zip(cold, warm, strict=True)) < 1e-3


def _profile(device: str) -> Profile:
    return next(one for one in observe_profiles(observe_environment()) if (one.device is None) == (device == CPU))
