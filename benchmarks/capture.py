"""A start on captured caches against one on a warm local directory, for a program whose graph breaks.

`python -m benchmarks.capture [--rounds 5]` captures the program through a service of its own, waits until a worker
has captured it again, and starts it in turns: on a directory that earlier starts have filled (`local`), and by
`aot run`, whose time includes resolving, verifying and restoring (`first` on an empty node, `run` later). The clock
runs from the spawn to the exit. Compilers are counted by ptrace in one more start; asking `g++` for its version
compiles nothing, and is listed apart. Writes `benchmarks/results/capture-<host>.json`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.sandbox import Limits, run_child
from aot.sandbox.exit import Program
from benchmarks.cold_start import default_label, host
from benchmarks.service import ROOT, Service, running_service

PROGRAM = ROOT / "tests" / "integration" / "broken_graphs.py"
RESULTS = ROOT / "benchmarks" / "results"
REFERENCE = "broken:bench"
COMPILERS = frozenset({"cc1plus", "cc1", "ld", "collect2", "as", "ptxas"})


def main() -> int:
    options = _parse()
    data = Path(tempfile.mkdtemp(prefix="aot-bench-"))
    try:
        with running_service(data / "service") as service:
            report = measure(service, data, rounds=options.rounds)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    place = RESULTS / f"capture-{options.label or default_label()}.json"
    place.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["summary"], indent=2))
    return 0


def measure(service: Service, data: Path, *, rounds: int) -> dict[str, Any]:
    tree = data / "tree"
    tree.mkdir()
    shutil.copy(PROGRAM, tree / "program.py")
    program = (sys.executable, str(tree / "program.py"))
    environ = {name: value for name, value in os.environ.items() if name != "CXX"} | {**service.environ}
    environ["PYTHONPATH"] = str(ROOT)
    aot = (sys.executable, "-m", "aot.cli")
    pushed = json.loads(
        _start(
            (
                *aot,
                "capture",
                REFERENCE,
                "--once",
                "--source",
                str(tree),
                "--push",
                "--json",
                "--",
                sys.executable,
                "program.py",
            ),
            environ,
            cwd=tree,
        )[1]
    )
    _start((*aot, "wait", pushed["build"]), environ, cwd=tree)
    local = {**environ, "TORCHINDUCTOR_CACHE_DIR": str(data / "local"), "TMPDIR": str(data)}
    cold = _start(program, local, cwd=tree)[0]
    run = (*aot, "run", REFERENCE, "--", *program)
    first = _start(run, environ, cwd=tree)[0]
    times: dict[str, list[float]] = {"local": [], "run": []}
    for turn in range(rounds):
        order = ("local", "run") if turn % 2 else ("run", "local")
        for which in order:
            command, around = (program, local) if which == "local" else (run, environ)
            times[which].append(_start(command, around, cwd=tree)[0])
        print(f"round {turn + 1} of {rounds}: {times['local'][-1]:.2f} {times['run'][-1]:.2f}", file=sys.stderr)
    medians = {name: statistics.median(found) for name, found in times.items()}
    summary = {
        "cold_seconds": cold,
        "first_seconds": first,
        "local_seconds": medians["local"],
        "run_seconds": medians["run"],
        "ratio": medians["run"] / medians["local"],
        **count_compilers(run, environ, cwd=tree),
    }
    return {"host": host(), "summary": summary, "seconds": times}


def is_compile(program: Program) -> bool:
    """Whether it compiles, assembles or links; one that is asked for its version, as Triton asks ptxas, does not."""
    return Path(program.path).name in COMPILERS and "--version" not in program.argv


def count_compilers(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path) -> dict[str, Any]:
    """Return how many processes of one start compiled, assembled or linked, and how often g++ was run at all."""
    ended = run_child(
        command,
        cwd=cwd,
        env=environ,
        limits=Limits(wall_seconds=300.0, memory_bytes=8 << 30, processes=256, output_bytes=16 << 20),
        sandbox=None,
        count_processes=True,
    )
    assert ended.succeeded and ended.processes is not None, ended.describe()
    programs = ended.processes.programs
    names = [Path(program.path).name for program in programs]
    return {
        "compilers": sum(map(is_compile, programs)),
        "compiler_driver_asked": sum("g++" in name for name in names),
        "counted_by": str(ended.processes.counted_by),
    }


def _start(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path) -> tuple[float, str]:
    started = time.perf_counter()
    ended = subprocess.run(command, env=dict(environ), cwd=cwd, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return seconds, ended.stdout


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--label", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
