"""One fresh process: build a model, take a route, run it once, say so; then, if asked, measure and compare.

`python -m benchmarks.child ROUTE MODEL [--reference REF --lock FILE] [--measure N] [--weights random]`. Lines on stdout
are JSON; `first-output` is what the parent's clock stops at. With `--checkpoint FILE --batches 1,16` the model is one
of those for cards: its weights are read from that file (`made-up`: from none, for a run whose results nobody reads),
and it is called and measured at each batch, the first first; `--every-batch` calls it at each where none is measured.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.routes import ROUTES, SAVES, save_route, take_route

MADE_UP = "made-up"
GRADLESS = ("save-package", "save-aot-compile", "aot-compile")


def main() -> None:
    options = _parse()
    marks = {"imports": time.perf_counter()}
    import torch

    marks["torch"] = time.perf_counter()
    module, inputs_of = _make_card_model(options) if options.checkpoint else _make_model(options)
    batches = options.batches or (0,)
    inputs = inputs_of(batches[0])
    marks["model"] = time.perf_counter()
    # Export and guarded traces are made outside of inference mode, as a build makes them, and guards remember that.
    with torch.inference_mode(options.route not in GRADLESS), torch.no_grad():
        steps = _begin_steps() if options.steps else None
        run = take_route(options, module)
        if steps:
            steps.begin_call()
        marks["load"] = time.perf_counter()
        output = run(*inputs)
        float(output.sum())
        marks["call"] = time.perf_counter()
        if steps:
            steps.leave()
        told = {"steps": steps.told()} if steps else {}
        cpu_seconds = time.thread_time()
        _say("first-output", seconds=_spans(marks), cpu_seconds=cpu_seconds, modules=_compiler_modules(), **told)
        speeds = [_measure_at(batch, run, inputs_of(batch), options) for batch in batches if options.measure]
        if options.every_batch and not options.measure:
            for batch in batches[1:]:
                float(run(*inputs_of(batch)).sum())
        peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
        if options.route in SAVES:
            save_route(options, module, inputs_of)
        for speed, batch in zip(speeds, batches, strict=False):
            if not options.no_errors:
                speed |= _errors(run, module, inputs_of(batch), torch)
    if speeds:
        _say("measured", **speeds[0], batches=speeds, peak_bytes=peak)
    counters = getattr(run, "counters", None)
    reasons, miss = list(getattr(run, "reasons", ())), getattr(run, "last_miss", "")
    _say("done", counters=counters, **_compiler(), reasons=reasons, miss=miss, cache_bytes=_cache_bytes())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("route", choices=ROUTES)
    parser.add_argument("model")
    parser.add_argument("--mode", default="max-autotune-no-cudagraphs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--reference", default="")
    parser.add_argument("--lock")
    parser.add_argument("--file", default="")
    parser.add_argument("--measure", type=float, default=0.0, help="seconds to measure for")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--weights", choices=("given", "random"), default="given")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--every-batch", action="store_true")
    parser.add_argument("--steps", action="store_true", help="tell what each step of `aot.load` took")
    parser.add_argument("--no-errors", action="store_true")
    parser.add_argument("--batches", type=lambda text: tuple(int(one) for one in text.split(",")), default=())
    return parser.parse_args()


def _begin_steps() -> Any:
    from benchmarks.load_profile import begin_steps  # only here: it imports more than a start does

    return begin_steps()


def _make_model(options: argparse.Namespace) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    from benchmarks.models import MODELS

    source = MODELS[options.model].import_module()
    module = source.build_module(**({"random_weights": True} if options.weights == "random" else {}))
    module = module.to(options.device)
    return module, lambda batch: tuple(value.to(options.device) for value in source.example_inputs())


def _make_card_model(options: argparse.Namespace) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    from pathlib import Path

    import torch

    from benchmarks.checkpoint import make_empty, make_up, read_checkpoint
    from benchmarks.models import CARD, DEEP

    model = {**DEEP, **CARD}[options.model]
    source, size = model.import_module(), model.size(tiny=options.tiny)
    dtype = torch.float32 if options.tiny else torch.bfloat16
    module = make_empty(lambda: source.build_module(size=size).to(dtype))
    if options.checkpoint == MADE_UP:
        module = make_up(module, device=options.device)
    else:
        module = read_checkpoint(module, Path(options.checkpoint), device=options.device)

    def inputs_of(batch: int) -> tuple[Any, ...]:
        given = source.example_inputs(batch, size=size, **dict(model.inputs))
        placed = (value.to(dtype) if value.is_floating_point() else value for value in given)
        return tuple(value.to(options.device) for value in placed)

    return module, inputs_of


def _measure_at(batch: int, run: Any, inputs: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Latencies at one batch; a route that compiles at its first call does so before they are taken."""
    return {"batch": batch, **_measure(run, inputs, options.measure, options.calls)}


def _measure(run: Any, inputs: Any, seconds: float, calls: int) -> dict[str, Any]:
    for _ in range(3):
        run(*inputs)
    _synchronize(inputs)
    times: list[float] = []
    ending = time.perf_counter() + seconds
    while len(times) < calls and (time.perf_counter() < ending or len(times) < 10):
        started = time.perf_counter()
        run(*inputs)
        _synchronize(inputs)
        times.append(time.perf_counter() - started)
    times.sort()
    return {
        "p50_ms": 1e3 * times[len(times) // 2],
        "p90_ms": 1e3 * times[int(len(times) * 0.9)],
        "calls": len(times),
    }


def _synchronize(inputs: Any) -> None:
    if inputs[0].device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def _errors(run: Any, module: Any, inputs: Any, torch: Any) -> dict[str, float]:
    """Largest absolute differences to the same module in float64."""
    import copy

    exact = copy.deepcopy(module).double()
    wide = [value.double() if value.is_floating_point() else value for value in inputs]
    reference = exact(*wide)
    return {
        "error": float((run(*inputs).double() - reference).abs().max()),
        "eager_error": float((module(*inputs).double() - reference).abs().max()),
    }


def _compiler() -> dict[str, int | None]:
    """How many choices the compiler of this process timed, and graphs it found or not; None where it has none."""
    utils = sys.modules.get("torch._dynamo.utils")
    names = {"tuned": "select_algorithm_autotune", "hits": "fxgraph_cache_hit", "misses": "fxgraph_cache_miss"}
    return {name: None if utils is None else int(utils.counters["inductor"][theirs]) for name, theirs in names.items()}


def _cache_bytes() -> int:
    """What lies in the compiler's caches once this process is through."""
    places = {os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR")} - {None}
    files = {os.path.join(at, name) for place in places for at, _, names in os.walk(str(place)) for name in names}
    return sum(os.path.getsize(path) for path in files if os.path.isfile(path))


def _spans(marks: dict[str, float]) -> dict[str, float]:
    names = list(marks)
    return {name: round(marks[name] - marks[before], 4) for before, name in itertools.pairwise(names)}


def _compiler_modules() -> list[str]:
    return sorted(name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor")))


def _say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
