"""A whole plan of a card in one command: builds and tests at once, then one row after the other with nothing beside it.

`python -m benchmarks.card_all --data DIR [--seconds 1700] [--tests] [STEP ...]`; a step is MODEL:ROWS[:PAIRS[:BATCHES]]
of `benchmarks.card`, most wanted first: `decoder:ours,jit:8 llama-prefill:jit:1:1 dit:regions resnet50:second-build`.
Building takes most of the time and leaves a card idle for most of it, so what `ours` starts is built ahead, every model
in a process and a data directory of its own, beside second builds, whose seconds are compared among themselves, and the
GPU tests. What needs the machine to itself comes after, in the order given; no step is begun when the time is over.
A build of a perceptron comes first of all: where that fails nothing else is begun. Steps tell what they do in files in
DIR, and leave their rows in `benchmarks/results/<card>-<torch>.json` as they are measured: a plan that is ended from
outside loses the row in hand.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.card_host import card_host, label_of
from benchmarks.card_width import SECOND
from benchmarks.cold_start import RESULTS
from benchmarks.models import CARD, MODELS
from benchmarks.service import running_service
from benchmarks.starts import ROOT

DEFAULT_STEPS = (
    *(f"{model}:ours:8" for model in CARD),
    *("decoder:load", "decoder-32:regions:1:1", "dit:regions:1:1", "decoder:second-build", "resnet50:second-build"),
    *(f"{model}:jit:1:1" for model in CARD),
    *("decoder:mega-cache:4:1", "decoder:jit-default,aot-compile:4:1", "dit:regions-tuned:1:1"),
)
# For a step that is interrupted: its service ends what it runs.
_GRACE_SECONDS = 20


@dataclass(frozen=True)
class Step:
    """Rows of one model in one call of `benchmarks.card`."""

    model: str
    rows: str
    pairs: str = "5"
    batches: str = "1,16"

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Raises ValueError."""
        parts = text.split(":")
        if not 2 <= len(parts) <= 4 or not all(parts):
            raise ValueError(f"wanted MODEL:ROWS[:PAIRS[:BATCHES]], found {text!r}")
        return cls(*parts)

    @property
    def of_builds(self) -> bool:
        """Whether it may run beside others: its figures are compared with one another."""
        return self.rows == SECOND

    @property
    def name(self) -> str:
        return f"{self.model}-{self.rows.replace(',', '-')}"

    def words(self, data: Path, *more: str) -> list[str]:
        """The command. A model's steps share a directory: what one of them leaves others start from."""
        own = data / (self.name if self.of_builds else self.model)
        chosen = ["--models", self.model, "--rows", self.rows, "--pairs", self.pairs, "--batches", self.batches]
        return [sys.executable, "-m", "benchmarks.card", "--no-tests", *chosen, "--data", str(own), *more]


def main() -> int:
    options = _parse()
    ending = time.monotonic() + options.seconds
    data: Path = options.data.absolute()
    data.mkdir(parents=True, exist_ok=True)
    shared = ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    label = label_of(card_host(options.device))
    prove_toolchain(data)
    ahead = min(ending, time.monotonic() + options.ahead)
    run_at_once(options.steps, data, shared, label=label, tests=options.tests, until=ahead)
    for step in (one for one in options.steps if not one.of_builds):
        if time.monotonic() >= ending:
            print(f"{step.name}: not begun, the time was over", flush=True)
            continue
        report(step.name, end_by(begin(step.words(data, *shared), data / f"{step.name}.log"), ending))
    return 0


def prove_toolchain(data: Path) -> None:
    """Build a perceptron through a service, which also makes the C++ headers. Raises CalledProcessError."""
    small = MODELS["small"]
    with running_service(data / "first") as service:
        service.aot("build", "small:card", "--source", str(small.source), "--entry", small.entry, "--mode", "default")


def run_at_once(
    steps: Sequence[Step], data: Path, shared: Sequence[str], *, label: str, tests: bool, until: float
) -> None:
    """Build what `ours` starts, run second builds and the tests, all beside each other; then join their results."""
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    built = dict.fromkeys(step.model for step in steps if "ours" in step.rows.split(","))
    for model in built:
        words = Step(model, "ours").words(data, *shared, "--only-build")
        running.append((f"{model}-build", begin(words, data / f"{model}-build.log")))
    apart = {f"{label}-{step.name}": step for step in steps if step.of_builds}
    for own, step in apart.items():
        running.append((step.name, begin(step.words(data, *shared, "--label", own), data / f"{step.name}.log")))
    if tests:
        running.append(("tests", begin(tests_command(label), data / "tests.log")))
    for name, process in running:
        report(name, end_by(process, until))
    # Each wrote a file of its own, for two must not write the same one.
    files = [path for own in apart if (path := RESULTS / f"{own}.json").is_file()]
    if files:
        subprocess.run([sys.executable, "-m", "benchmarks.merge", *map(str, files)], cwd=ROOT, check=True)
        for path in files:
            path.unlink()


def tests_command(label: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.card_host", str(RESULTS / f"{label}-tests.txt")]


def begin(words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as told:
        # In a group of its own, so that all that it has started ends with it.
        return subprocess.Popen(words, cwd=ROOT, stdout=told, stderr=subprocess.STDOUT, start_new_session=True)


def end_by(process: "subprocess.Popen[bytes]", until: float) -> int:
    """Wait for it, and interrupt it when the time is over; return its exit code."""
    try:
        return process.wait(timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def report(name: str, code: int) -> None:
    print(f"{time.strftime('%H:%M:%S')} {name}: {'done' if code == 0 else f'ended with {code}'}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", type=Step.parse, default=[Step.parse(text) for text in DEFAULT_STEPS])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=86400.0)
    parser.add_argument("--ahead", type=float, default=86400.0, help="most seconds of what runs at once")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
