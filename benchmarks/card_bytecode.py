"""Ours on restored bytecode beside eager without any, in an image that has none beside its sources.

Both are started as `benchmarks.bytecode` starts them: eager under an empty prefix for bytecode that nobody writes to,
so that every module is compiled at every start, and ours under the tree that is made of what its start imports, with
nothing of this image's own linked into it. An image that has bytecode is thereby made a bare one, for both sides alike;
`own_bytecode` says of how many modules it has some.
"""

import shutil
from typing import Any

from benchmarks.bytecode import restore, states_of
from benchmarks.card_rows import Bench, Keep, Ways, start_eager, starts_of, take_turn, take_turns
from benchmarks.models import Model
from benchmarks.starts import Start, start_child

BYTECODE = "bytecode"


def measure_bytecode(bench: Bench, model: Model, *, keep: Keep = lambda found: None) -> dict[str, Any]:
    """Build, or take what `ours` has built; restore what its start imports; then start in turns, the first untimed."""
    built = bench.build(model, bench.options.mode)
    place = bench.runs / f"{model.name}-{bench.options.mode}" / BYTECODE
    shutil.rmtree(place, ignore_errors=True)
    words = ["ours", *bench.words(model), "--mode", bench.options.mode, "--reference", built["reference"]]
    environ = bench.ours_environ(place / "ours")
    tree, archive_bytes, timings = restore({"ours": words}, {"ours": environ}, place)
    states = states_of(tree, place)
    found = {"modules": tree.restored, "bytes": archive_bytes, **timings}
    ways: Ways = {
        "eager": lambda: start_eager(bench, model, **states["without"]),
        "this": lambda: start_child(words, {**environ, **states["with"]}),
    }
    take_turn(ways, 0)
    turns = take_turns(
        ways,
        bench.options.pairs,
        title=f"{model.name} {BYTECODE}: pair",
        keep=lambda taken: keep(_report(taken, found)),
    )
    return _report(turns, found)


def _report(turns: list[dict[str, Start]], found: dict[str, Any]) -> dict[str, Any]:
    row = starts_of([turn["eager"] for turn in turns], [turn["this"] for turn in turns])
    row["summary"] |= {"own_bytecode": found["own_bytecode"], "modules": found["modules"]}
    return row | found | {"counters": turns[-1]["this"].done["counters"]}
