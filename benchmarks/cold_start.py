"""Start to first output, ours against eager, in fresh processes interleaved pair by pair.

`python -m benchmarks.cold_start [--models minilm,decoder,resnet] [--pairs 9] [--jit 3]` builds each model through a
service of its own, pulls the bundle to a node cache, and writes `benchmarks/results/cold-start-<host>.json`.
A node that is warm and pinned by digest asks nothing of the registry, so the registry is down while this measures.
Pairs alternate in which of the two goes first, since a machine that slows down or warms up would favour one. CPU time
is the main thread's until the first output: OpenMP's other threads burn as much while they wait as while they work.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot.environment import observe_environment
from benchmarks.models import MEASURED, MODELS, Model
from benchmarks.service import ROOT, Service, running_service
from benchmarks.starts import Start, clean_environ, count_processes, median_ratio, start_child

RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    options = _parse()
    data = Path(tempfile.mkdtemp(prefix="aot-bench-"))
    try:
        with running_service(data) as service:
            bundles = {name: build(service, MODELS[name]) for name in options.models}
        environ = {**service.environ, "AOT_URL": "", "AOT_OFFLINE": "1"}
        results = [
            measure(MODELS[name], bundles[name], environ, data / name, pairs=options.pairs, jit=options.jit)
            for name in options.models
        ]
    finally:
        shutil.rmtree(data, ignore_errors=True)
    report = {"host": host(), "pairs": options.pairs, "models": results}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"cold-start-{options.label or default_label()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print_report(results)
    print(f"written to {path.relative_to(ROOT)}", file=sys.stderr)
    return 0


def build(service: Service, model: Model, *more: str) -> str:
    """Build the model and pull its bundle to the node's cache; return the reference pinned to its digest.

    `more` are further words of the command.
    """
    print(f"building {model.name}", file=sys.stderr)
    required = [part for pin in model.requirements for part in ("--require", pin)]
    required += [part for dimension in model.dimensions for part in ("--dim", dimension)]
    words = [f"{model.name}:bench", "--source", str(model.source), "--entry", model.entry, *required, *more]
    answer = json.loads(service.aot("build", *words, "--json", quiet=True))
    reference = f"default/{model.name}@{answer['bundle']}"
    service.aot("pull", reference, quiet=True)
    return reference


def measure(
    model: Model, reference: str, environ: dict[str, str], caches: Path, *, pairs: int, jit: int
) -> dict[str, Any]:
    """Pairs of eager and ours, then both in their steady state, then JIT on empty compiler caches."""
    eager_environ = clean_environ(caches / "eager")
    ours_environ = clean_environ(caches / "ours", **environ)
    eager_arguments = ["eager", model.name]
    ours_arguments = ["ours", model.name, "--reference", reference]
    eager_starts, ours_starts = start_pairs(
        lambda: start_child(eager_arguments, eager_environ),
        lambda: start_child(ours_arguments, ours_environ),
        pairs=pairs,
        title=model.name,
    )
    # Where eager won in the proof, it runs; nothing else may keep a call from compiled code.
    counters = [start.done["counters"] for start in ours_starts]
    assert all(one["eager"] == one["eager_won"] for one in counters), ours_starts[0].done
    extra = sorted(set(ours_starts[0].first["modules"]) - set(eager_starts[0].first["modules"]))
    speed = {
        "eager": start_child([*eager_arguments, "--measure", "5"], eager_environ).measured,
        "ours": start_child([*ours_arguments, "--measure", "5"], ours_environ).measured,
    }
    cold = [start_child(["jit", model.name], clean_environ(caches / f"jit-{run}")).seconds for run in range(jit)]
    return {
        "model": model.name,
        "title": model.title,
        **compare([start.seconds for start in ours_starts], [start.seconds for start in eager_starts]),
        "cpu": compare([start.cpu_seconds for start in ours_starts], [start.cpu_seconds for start in eager_starts]),
        "load_seconds": statistics.median(start.first["seconds"]["load"] for start in ours_starts),
        "compiler_modules_beyond_eager": extra,
        "compiler_modules": len(ours_starts[0].first["modules"]),
        "processes": count_processes(ours_arguments, ours_environ),
        "jit_cold_seconds": cold,
        "steady": speed,
    }


def start_pairs(
    eager: Callable[[], Start], ours: Callable[[], Start], *, pairs: int, title: str
) -> tuple[list[Start], list[Start]]:
    """The starts of each, pair by pair. A first pair fills the page cache and writes bytecode, and does not count."""
    eager_starts, ours_starts = [], []
    for pair in range(pairs + 1):
        print(f"{title}: pair {pair} of {pairs}", file=sys.stderr)
        if pair % 2:
            ours_starts.append(ours())
            eager_starts.append(eager())
        else:
            eager_starts.append(eager())
            ours_starts.append(ours())
    return eager_starts[1:], ours_starts[1:]


def compare(ours_seconds: list[float], eager_seconds: list[float]) -> dict[str, Any]:
    """Both, pair by pair, with the median of the ratios and of the differences."""
    ratio, least, most = median_ratio(ours_seconds, eager_seconds)
    return {
        "eager_seconds": eager_seconds,
        "ours_seconds": ours_seconds,
        "ratio_median": ratio,
        "ratio_range": [least, most],
        "added_seconds": statistics.median(one - other for one, other in zip(ours_seconds, eager_seconds, strict=True)),
    }


def host() -> dict[str, Any]:
    environment = observe_environment()
    return {
        "cpu": environment.node.cpu_model,
        "capability": environment.node.cpu,
        "cores": environment.container.cores,
        "torch": environment.container.torch,
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def default_label() -> str:
    return _label(f"{cpu_label()}-torch-{host()['torch']}")


def cpu_label() -> str:
    return _label(str(host()["capability"]).replace("cpu:", ""))


def _label(words: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in words)


def print_report(results: list[dict[str, Any]]) -> None:
    titles = (
        *(("eager", 8), ("ours", 8), ("ratio (range)", 20), ("added", 8), ("CPU ratio", 9), ("CPU added", 9)),
        *(("JIT cold", 9), ("p50 ours/eager", 18)),
    )
    print(f"{'model':10} " + " ".join(f"{title:>{width}}" for title, width in titles))
    for one in results:
        eager, ours = statistics.median(one["eager_seconds"]), statistics.median(one["ours_seconds"])
        least, most = one["ratio_range"]
        spread = f"{one['ratio_median']:.3f} ({least:.2f}-{most:.2f})"
        cold = f"{statistics.median(one['jit_cold_seconds']):.1f} s" if one["jit_cold_seconds"] else "-"
        steady = one["steady"]
        pair = f"{steady['ours']['p50_ms']:.1f}/{steady['eager']['p50_ms']:.1f} ms"
        added = f"{one['added_seconds'] * 1000:.0f} ms"
        cpu = f"{one['cpu']['ratio_median']:9.3f} {one['cpu']['added_seconds'] * 1000:6.0f} ms"
        print(f"{one['model']:10} {eager:6.2f} s {ours:6.2f} s {spread:>20} {added:>8} {cpu} {cold:>9} {pair:>18}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MEASURED))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--jit", type=int, default=3)
    parser.add_argument("--label", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
