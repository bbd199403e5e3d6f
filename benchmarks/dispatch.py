"""What a call of a CompiledModel costs over the raw call, all checks on; and two threads against one.

`python -m benchmarks.dispatch` builds a small model here, through the pipeline and without a registry, loads it as a
pod does, and prints microseconds a call and calls a second. Of regions, what each of 32 blocks costs in a call of the
model, with torch's own call of a module. The raw call also by the object's other entry, for one thread and without
events on a card. Each figure is printed as a line of JSON once it is measured; all of them are written to
`benchmarks/results/dispatch-<host>.json`, those of `--only NAME ...` are not.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot.runtime.container import Container
from aot.schema.recipe import Mode, Recipe, Regions
from benchmarks.card_host import card_host, label_of
from benchmarks.cold_start import RESULTS, default_label, host
from benchmarks.local_build import build_locally

WINDOWS, WINDOW_CALLS = 15, 2000
# What a call of compiled code costs: a mode with graphs would replay those on a card, and tuning take most of the time.
WHOLE = Recipe(mode=Mode.DEFAULT)
REGIONS = Recipe(mode=Mode.DEFAULT, regions=Regions.AUTO)
SECONDS = 2.0


def main() -> int:
    import torch

    wanted = _parse().only
    torch.set_num_threads(1)
    on_card = torch.cuda.is_available()
    about = card_host("cuda") if on_card else host()
    label = label_of(about) if on_card else default_label()
    scratch = Path(tempfile.mkdtemp(prefix="aot-dispatch-"))
    try:
        found = {}
        for name, (example, function, recipe, measure) in MEASURED.items():
            if name in wanted:
                found[name] = measure(build_locally(example, function, scratch / name, recipe=recipe), torch)
                # Builds take minutes on a card: what was measured is told before the next one.
                print(json.dumps({name: found[name]}), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if found.keys() == MEASURED.keys():
        RESULTS.mkdir(exist_ok=True)
        report = {"host": about, **found}
        (RESULTS / f"dispatch-{label}.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=MEASURED)
    return parser.parse_args()


def measure_dispatch(model: Any, torch: Any) -> dict[str, float]:
    """Median microseconds a call over interleaved windows: through the model, and straight into its container."""
    inputs = model.example
    container = model.compiled._units[0]._bound.forms[0].variants[0].container
    single = single_of(model, container)

    def raw() -> None:
        container.run(inputs)

    def alone() -> None:
        single.run_single_threaded(inputs)

    def whole() -> None:
        model.compiled(*inputs)

    with torch.inference_mode():
        windows = [(window(raw), window(whole), window(alone)) for _ in range(WINDOWS)]
    raw_us, whole_us, single_us = (statistics.median(column) for column in zip(*windows, strict=True))
    return {
        "raw_us": raw_us,
        "model_us": whole_us,
        "overhead_us": whole_us - raw_us,
        "single_us": single_us,
        "eager_won": model.compiled.counters["eager_won"],  # calls of `whole` that were none of compiled code
        "weights": model.weights,
    }


def single_of(model: Any, plain: Container) -> Container:
    """Return a container of one model for the program of `plain`, bound to the same tensors."""
    binder = model.compiled._units[0]._bind
    single: Container = binder._opener.open(binder._artifacts[0], plain.device, num_models=1)
    names = [slot.fqn for slot in single.constants if not slot.folded]
    single.bind(dict(zip(names, plain._bound._aliases, strict=True)))
    return single


def measure_regions(model: Any, torch: Any) -> dict[str, float]:
    """Median microseconds a block over interleaved windows: in a call of the model, and straight into its containers.

    The overhead is the median of each pair of windows' difference: a machine that slows down slows both.
    """
    (hidden,) = model.example
    blocks = model.compiled._units

    def raw() -> None:
        passed = hidden
        for run in runs:
            (passed,) = run((passed,))

    def whole() -> None:
        model.compiled(hidden)

    with torch.inference_mode():
        runs = [answering(block, (hidden,)) for block in blocks]
        calls = WINDOW_CALLS // len(blocks)
        pairs = [(window(raw, calls), window(whole, calls)) for _ in range(2 * WINDOWS)]
    raw_us, model_us = (statistics.median(column) / len(blocks) for column in zip(*pairs, strict=True))
    overheads = [(through - straight) / len(blocks) for straight, through in pairs]
    return {
        "raw_us": raw_us,
        "model_us": model_us,
        "overhead_us": statistics.median(overheads),
        "blocks": len(blocks),
        "weights": model.weights // len(blocks),
    }


def answering(unit: Any, inputs: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the raw call of the container that answers for `inputs`: there may be others for other sizes."""
    variants = [variant for form in unit._bound.forms for variant in form.variants]
    run: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    run = next(variant.container.run for variant in variants if variant.check(inputs) is None)
    return run


def window(call: Callable[[], None], calls: int = WINDOW_CALLS) -> float:
    finish()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    finish()
    return 1e6 * (time.perf_counter() - started) / calls


def finish() -> None:
    """Wait for the card, where there is one: a call only queues work there."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_threads(model: Any, torch: Any) -> dict[str, float]:
    """Calls a second of one and of two threads on one CompiledModel, in turn, one OpenMP thread each."""
    ratios, rates = [], []
    for _ in range(5):
        one, two = rate(model, 1, torch), rate(model, 2, torch)
        rates.append((one, two))
        ratios.append(two / one)
    one, two = (statistics.median(column) for column in zip(*rates, strict=True))
    return {"one_thread": one, "two_threads": two, "ratio": statistics.median(ratios), "best_ratio": max(ratios)}


def rate(model: Any, threads: int, torch: Any) -> float:
    counts = [0] * threads
    ending = time.perf_counter() + SECONDS

    def work(index: int) -> None:
        torch.set_num_threads(1)  # OpenMP keeps the number by thread
        with torch.inference_mode():
            while time.perf_counter() < ending:
                model.compiled(*model.example)
                counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / SECONDS


# What is built, and how it is measured.
MEASURED = {
    "dispatch": ("small", "build", WHOLE, measure_dispatch),
    "dispatch_deep": ("small", "build_deep", WHOLE, measure_dispatch),
    "regions": ("blocks", "build32_narrow", REGIONS, measure_regions),
    "threads": ("small", "build_wide", WHOLE, measure_threads),
}


if __name__ == "__main__":
    sys.exit(main())
