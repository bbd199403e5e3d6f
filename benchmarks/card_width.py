"""A second build after one layer's width changed, through the service: what tuning costs then, and what it would have.

Three builds: the model and then the changed one in one namespace, and the changed one in a namespace that has built
nothing before. The last two ask the same question, so their difference is what earlier measurements save. Compiler
caches are private to a build; nothing else is shared between them.
"""

import time
from dataclasses import replace
from typing import Any

from aot.schema.report import Phase
from benchmarks.card_regions import warm_headers
from benchmarks.card_rows import Bench
from benchmarks.checkpoint import write_checkpoint
from benchmarks.models import Model

SECOND = "second-build"
FIRST, AGAIN, FRESH = "first", "again", "fresh"
# Namespaces of this call alone: what an attempt that was cut off has measured must not count as saved.
SPACES = SEEDED, UNSEEDED = f"seeded-{int(time.time())}", f"fresh-{int(time.time())}"
# Besides products, kernels are tuned while they are compiled: their seconds are of that phase.
COMPILING = (Phase.COMPILING, Phase.TUNING)


def measure_width(bench: Bench, model: Model) -> dict[str, Any]:
    """Build `model`, then its source's factory `changed` on top of it and afresh, one batch each."""
    batch = bench.options.batches.partition(",")[0]
    mode, other = bench.options.mode, replace(model, factory="changed")
    warm_headers(bench)
    builds = {}
    for way, built, space in ((FIRST, model, SEEDED), (AGAIN, other, SEEDED), (FRESH, other, UNSEEDED)):
        name = f"{space}/{model.name}-{'changed' if built is other else 'first'}"
        extra = frozen(bench, built) if bench.options.device == "cpu" else ()
        builds[way] = bench.build(built, mode, "--dim", f"batch={batch}", *extra, name=name)
    tuning = {way: built["phases"].get(Phase.TUNING, 0.0) for way, built in builds.items()}
    compiling = {way: sum(built["phases"].get(one, 0.0) for one in COMPILING) for way, built in builds.items()}
    saved = saved_of(tuning)
    return {
        "tuning_seconds": tuning,
        "compile_seconds": compiling,
        "saved": saved,
        "saved_of_compile": saved_of(compiling),
        "builds": builds,
        "summary": {"saved": None if saved is None else round(saved, 3), "reused": builds[AGAIN]["reused"]},
    }


def frozen(bench: Bench, model: Model) -> tuple[str, ...]:
    """What makes a build on a CPU tune: Inductor does so for constant weights only."""
    _, _, factory = model.entry_of(tiny=bench.options.tiny).partition(":")
    path = bench.data / "weights" / f"{model.source.name}-{factory}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(getattr(model.import_module(), factory)()["module"], path)
    return ("--freeze", "--weights", str(path))


def saved_of(seconds: dict[str, float]) -> float | None:
    """The part of the fresh build's seconds that the other did not need; None where there is nothing to save."""
    return 1 - seconds[AGAIN] / seconds[FRESH] if seconds[FRESH] else None
