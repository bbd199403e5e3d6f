"""Regions against the whole program on a card, through the service: seconds of the compile, and calls at each batch."""

from typing import Any

from aot.schema.report import Phase
from benchmarks.card_rows import Bench
from benchmarks.models import MODELS, Model
from benchmarks.starts import clean_environ, start_child

# Of a build's phases, those that regions save: reading the source and the proof are the same for both.
COMPILING = (Phase.EXPORTING, Phase.COMPILING, Phase.TUNING)


def measure_regions(bench: Bench, model: Model) -> dict[str, Any]:
    """Build in mode default whole and by regions, one batch each, and measure both and eager in fresh processes."""
    first = bench.options.batches.partition(",")[0]
    size = ("--dim", f"batch={first}")
    warm_headers(bench)
    ways = {
        way: bench.build(model, "default", *size, "--regions", way, name=f"{model.name}-{way}")
        for way in ("whole", "auto")
    }
    words = [*bench.words(model, batches=first), "--measure", str(bench.options.measure)]
    measured = {"eager": start_child(["eager", *words], clean_environ(bench.runs / "eager"))}
    for way, built in ways.items():
        ours = ["ours", *words, "--reference", built["reference"]]
        measured[way] = start_child(ours, bench.ours_environ(bench.runs / f"{model.name}-{way}"))
    seconds = {way: sum(built["phases"].get(one, 0.0) for one in COMPILING) for way, built in ways.items()}
    cheaper = seconds["whole"] / seconds["auto"]
    kept = measured["whole"].measured["p50_ms"] / measured["auto"].measured["p50_ms"]
    return {
        "compile_seconds": seconds,
        "times_cheaper": cheaper,
        "speed_kept": kept,
        "steady": {way: start.measured for way, start in measured.items()},
        "counters": {way: start.done["counters"] for way, start in measured.items()},
        "builds": ways,
        "summary": {"times_cheaper": round(cheaper, 2), "speed_kept": round(kept, 3)},
    }


def warm_headers(bench: Bench) -> None:
    """The first build on a machine compiles C++ headers, which are no part of either way."""
    small = MODELS["small"]
    words = ["build", "small:card", "--source", str(small.source), "--entry", small.entry, "--mode", "default"]
    bench.service.aot(*words, "--json", quiet=True)
