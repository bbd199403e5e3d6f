"""Where the time of `aot.load` goes on a card, step by step, in the child that every other row starts too."""

from typing import Any

from benchmarks.card_rows import Bench
from benchmarks.load_profile import ORDER, median
from benchmarks.models import Model
from benchmarks.starts import start_child

LOAD = "load"


def measure_load(bench: Bench, model: Model) -> dict[str, Any]:
    """Median milliseconds of each step of a start that finds its bundle on the node; the first start is not counted."""
    built = bench.build(model, bench.options.mode)
    words = ["ours", *bench.words(model), "--reference", built["reference"], "--steps"]
    starts = [
        start_child(words, bench.ours_environ(bench.runs / f"{model.name}-load"))
        for _ in range(bench.options.pairs + 1)
    ][1:]
    told = [start.first["steps"] for start in starts]
    steps = {label: round(median(told, "wall", (label,)), 2) for label in ORDER}
    largest = dict(sorted(steps.items(), key=lambda step: -step[1])[:4])
    return {"reference": built["reference"], "steps_ms": steps, "starts": len(starts), "summary": largest}
