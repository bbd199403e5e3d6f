"""Regions against the whole program: what compiling costs and what a call takes, for 6, 12 and 24 equal blocks.

`python -m benchmarks.regions [--rounds 3]` compiles each in turn, several times, with warm headers, measures calls
in turn, and writes `benchmarks/results/regions-<host>.json`. The cost is everything between the source being loaded
and the last artifact being compiled: finding the regions, export, and compile.
"""

import argparse
import copy
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aot.schema.recipe import Recipe, Regions
from aot.schema.report import Phase
from benchmarks.cold_start import RESULTS, default_label, host
from benchmarks.local_build import Built, compile_locally

LAYERS = (6, 12, 24)
CALLS = 60
WAYS = {"whole": Recipe(), "regions": Recipe(regions=Regions.AUTO)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    scratch = Path(tempfile.mkdtemp(prefix="aot-regions-"))
    try:
        compile_locally("small", "build", scratch / "warm", recipe=Recipe())  # headers
        spent, built = compile_all(scratch, rounds)
        rows = [measure(layers, spent, built) for layers in LAYERS]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"regions-{default_label()}.json"
    path.write_text(json.dumps({"host": host(), "rounds": rounds, "rows": rows}, indent=2) + "\n")
    for row in rows:
        print(
            f"{row['layers']:3} blocks: export + compile whole {row['whole_seconds']:.1f} s, regions "
            f"{row['regions_seconds']:.1f} s ({row['times_cheaper']:.1f}x); call whole {row['whole_ms']:.2f} ms, "
            f"regions {row['regions_ms']:.2f} ms ({row['regions_over_whole']:.2f}x), eager {row['eager_ms']:.2f} ms"
        )
    return 0


def compile_all(scratch: Path, rounds: int) -> tuple[dict[tuple[int, str], list[float]], dict[tuple[int, str], Built]]:
    """Every program both ways, all of them once a round: a machine that slows down slows them all."""
    spent: dict[tuple[int, str], list[float]] = {}
    built: dict[tuple[int, str], Built] = {}
    for number in range(rounds):
        for layers in LAYERS:
            for way, recipe in WAYS.items():
                print(f"round {number + 1} of {rounds}: {layers} blocks, {way}", file=sys.stderr)
                place = scratch / f"{way}-{layers}-{number}"
                made = compile_locally("blocks", f"build{layers}", place, recipe=recipe)
                spent.setdefault((layers, way), []).append(_spent(made))
                built[layers, way] = made
    return spent, built


def measure(
    layers: int, spent: dict[tuple[int, str], list[float]], built: dict[tuple[int, str], Built]
) -> dict[str, Any]:
    import torch

    whole, parts = built[layers, "whole"], built[layers, "regions"]
    eager = copy.deepcopy(whole.module)
    times: dict[str, list[float]] = {"whole": [], "regions": [], "eager": []}
    calls = {"whole": whole.compiled, "regions": parts.compiled, "eager": eager}
    with torch.inference_mode():
        reference = eager(*whole.example)
        errors = {name: float((call(*whole.example) - reference).abs().max()) for name, call in calls.items()}
        for _ in range(CALLS):
            for name, call in calls.items():
                started = time.perf_counter()
                call(*whole.example)
                times[name].append(1e3 * (time.perf_counter() - started))
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    costs = {way: spent[layers, way] for way in WAYS}
    return {
        "layers": layers,
        **{f"{way}_seconds": statistics.median(costs[way]) for way in WAYS},
        **{f"{way}_seconds_each": costs[way] for way in WAYS},
        "times_cheaper": statistics.median(
            one / other for one, other in zip(costs["whole"], costs["regions"], strict=True)
        ),
        **medians,
        "regions_over_whole": medians["regions_ms"] / medians["whole_ms"],
        "largest_difference": errors,
        "counters": parts.compiled.counters,
    }


def _spent(built: Built) -> float:
    return sum(built.report.phases.get(phase, 0.0) for phase in (Phase.EXPORTING, Phase.COMPILING, Phase.TUNING))


if __name__ == "__main__":
    sys.exit(main())
