"""Regions against the whole program on a card, in one mode, through the service: seconds of the compile, and calls."""

from typing import Any

from aot.schema.report import Phase
from benchmarks.card_rows import Bench
from benchmarks.models import BATCHES, MODELS, Model
from benchmarks.starts import clean_environ, start_child

REGIONS, TUNED = OF_REGIONS = ("regions", "regions-tuned")
# Of a build's phases, those that regions save: reading the source and the proof are the same for both.
COMPILING = (Phase.EXPORTING, Phase.COMPILING, Phase.TUNING)


def measure_regions(bench: Bench, model: Model, mode: str) -> dict[str, Any]:
    """Build whole and by regions, and measure both and eager at each batch in fresh processes.

    Of the batches that `--batches` names, whatever the model's own are: one alone is a program less to compile, on
    either way, and large ones keep a card busy.
    """
    batches = bench.options.batches
    size = () if batches == ",".join(BATCHES) else ("--dim", f"batch={batches}")
    warm_headers(bench)
    ways = {
        way: bench.build(model, mode, *size, "--regions", way, name=f"{model.name}-{mode}-{way}")
        for way in ("whole", "auto")
    }
    words = [*bench.words(model), "--measure", str(bench.options.measure), "--no-errors"]
    measured = {"eager": start_child(["eager", *words], clean_environ(bench.runs / "eager"))}
    for way, built in ways.items():
        ours = ["ours", *words, "--reference", built["reference"]]
        measured[way] = start_child(ours, bench.ours_environ(bench.runs / f"{model.name}-{way}"))
    seconds = {way: sum(built["phases"].get(one, 0.0) for one in COMPILING) for way, built in ways.items()}
    cheaper = seconds["whole"] / seconds["auto"]
    kept = {
        f"{whole['batch']}": round(whole["p50_ms"] / regions["p50_ms"], 3)
        for whole, regions in zip(*(measured[way].measured["batches"] for way in ("whole", "auto")), strict=True)
    }
    return {
        "compile_seconds": seconds,
        "times_cheaper": cheaper,
        "speed_kept": kept,
        "steady": {way: start.measured for way, start in measured.items()},
        "counters": {way: start.done["counters"] for way, start in measured.items()},
        "builds": ways,
        "summary": {"times_cheaper": round(cheaper, 2), "speed_kept": kept},
    }


def warm_headers(bench: Bench) -> None:
    """The first build on a machine compiles C++ headers, which are no part of either way."""
    small = MODELS["small"]
    words = ["build", "small:card", "--source", str(small.source), "--entry", small.entry, "--mode", "default"]
    bench.service.aot(*words, "--json", quiet=True)
