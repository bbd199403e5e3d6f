"""Start to first output with and without restored bytecode, for eager and for every route, in an image without `.pyc`.

`python -m benchmarks.bytecode [--model decoder] [--rounds 5] [--routes eager,ours,function,jit]` builds the model
through a service of its own, compiles what each route imports, restores that as a node does, and writes
`benchmarks/results/bytecode-<host>.json`. The image without bytecode is this one under an empty prefix that nobody
writes to, so that every module is compiled at every start; `own` is the same image with the bytecode that it has, which
an interpreter trusts by time and size: the difference to `with` is what it costs to compare every source.
`ours` is the route `package`; `jit` is torch.compile on a compiler cache that an earlier run has filled, as the route
`cache` restores it.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.bundle import blob_of
from aot.bytecode import (
    Archive,
    Tree,
    compile_distribution,
    count_own,
    ensure_tree,
    find_installed,
    read_archive,
    spell_interpreter,
)
from aot.pipeline.bytecode import choose_modules
from benchmarks.cold_start import build, default_label, host
from benchmarks.models import MODELS
from benchmarks.service import ROOT, running_service
from benchmarks.starts import clean_environ, start_child

RESULTS = ROOT / "benchmarks" / "results"
STATES = ("without", "with", "own")
# Routes that the service builds, with the words that ask for them.
BUILT = {"ours": (), "function": ("--route", "function")}


def main() -> int:
    options = _parse()
    data = Path(tempfile.mkdtemp(prefix="aot-bench-"))
    try:
        arguments, environs = _routes(options, data)
        tree, archive_bytes, timings = restore(arguments, environs, data)
        states = states_of(tree, data)
        times: dict[str, dict[str, list[float]]] = {route: {state: [] for state in STATES} for route in arguments}
        for turn in range(options.rounds + 1):
            for route in arguments:
                # The order turns, so that a machine that warms up favours none.
                for state in (*STATES[turn % 3 :], *STATES[: turn % 3]):
                    seconds = start_child(arguments[route], {**environs[route], **states[state]}).seconds
                    times[route][state] += [seconds] if turn else []
            print(f"round {turn} of {options.rounds}", file=sys.stderr)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    report = {
        "host": host(),
        "model": options.model,
        "rounds": options.rounds,
        "modules": tree.restored,
        "archive_bytes": archive_bytes,
        **timings,
        "seconds": times,
        "ratios": ratios(times),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"bytecode-{options.label or default_label()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    _print_report(report)
    print(f"written to {path.relative_to(ROOT)}", file=sys.stderr)
    return 0


def ratios(times: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    """Medians over paired rounds: each route with over without, ours with over eager without, and the comparison's
    cost, which is a route with bytecode restored over the same with the image's own."""
    found = {f"{route}: with/without": _paired(one["with"], one["without"]) for route, one in times.items()}
    found |= {f"{route}: with/own": _paired(one["with"], one["own"]) for route, one in times.items()}
    if {"ours", "eager"} <= times.keys():
        found["ours with/eager without"] = _paired(times["ours"]["with"], times["eager"]["without"])
    return found


def restore(
    arguments: Mapping[str, list[str]], environs: Mapping[str, dict[str, str]], data: Path
) -> tuple[Tree, int, dict[str, float]]:
    """Compile what the routes import and restore it, once from nothing and once as it lies there.

    Beside the seconds: of how many of these modules the image has bytecode of its own.
    """
    wanted: dict[str, set[str]] = {}
    for route, words in arguments.items():
        command = [sys.executable, "-m", "benchmarks.child", *words]
        for one in choose_modules((), command=command, environ=environs[route]):
            wanted.setdefault(one.name, set()).update(one.files)
    archives, size_bytes, started = [], 0, time.perf_counter()
    for name, files in sorted(wanted.items()):
        installed = find_installed(name)
        assert installed is not None
        place = data / "archives" / f"{name}.tar"
        compile_distribution(installed, sorted(files), into=place)
        archives.append((installed.root, place))
        size_bytes += place.stat().st_size
    timings = {"compile_seconds": time.perf_counter() - started}
    for name in ("restore_seconds", "reuse_seconds"):
        started = time.perf_counter()
        whole = [
            Archive(root, blob_of(place).digest, read_archive(place, spell_interpreter())) for root, place in archives
        ]
        tree = ensure_tree(data / "trees", spell_interpreter(), whole, places=())
        timings[name] = time.perf_counter() - started
    timings["own_bytecode"] = count_own(whole, spell_interpreter())
    return tree, size_bytes, timings


def _routes(options: argparse.Namespace, data: Path) -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
    model = MODELS[options.model]
    arguments = {"eager": ["eager", model.name], "jit": ["jit", model.name, "--mode", "default"]}
    environs = {route: clean_environ(data / route) for route in arguments}
    if built := [route for route in options.routes if route in BUILT]:
        with running_service(data / "service") as service:
            references = {route: build(service, model, *BUILT[route]) for route in built}
        for route, reference in references.items():
            arguments[route] = ["ours", model.name, "--reference", reference]
            environs[route] = clean_environ(data / route, **{**service.environ, "AOT_URL": "", "AOT_OFFLINE": "1"})
    kept = {route: arguments[route] for route in options.routes}
    if "jit" in kept:
        start_child(arguments["jit"], environs["jit"])  # fills its compiler cache
    return kept, environs


def states_of(tree: Tree, data: Path) -> dict[str, dict[str, str]]:
    """The variables of each state. Nobody writes below the empty prefix: it stays empty."""
    (empty := data / "empty").mkdir(exist_ok=True)
    return {
        "without": {"PYTHONPYCACHEPREFIX": str(empty), "PYTHONDONTWRITEBYTECODE": "1"},
        "with": dict(tree.environment),
        "own": {"PYTHONDONTWRITEBYTECODE": "1"},
    }


def _paired(ours: list[float], other: list[float]) -> float:
    return statistics.median(one / two for one, two in zip(ours, other, strict=True))


def _print_report(report: dict[str, Any]) -> None:
    for route, one in report["seconds"].items():
        print(f"{route:8} " + "  ".join(f"{state} {statistics.median(one[state]):.2f} s" for state in STATES))
    for name, value in report["ratios"].items():
        print(f"{name:26} {value:.3f}")
    print(
        f"{report['modules']} modules, {report['archive_bytes'] / 1e6:.0f} MB: compiled in "
        f"{report['compile_seconds']:.1f} s, restored in {report['restore_seconds']:.2f} s, "
        f"compared again in {report['reuse_seconds']:.2f} s"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="decoder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--routes", type=lambda text: text.split(","), default=["eager", "ours", "function", "jit"])
    parser.add_argument("--label", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
