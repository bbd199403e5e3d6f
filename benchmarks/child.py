"""One fresh process: build a model, take a route, run it once, say so; then, if asked, measure and compare.

`python -m benchmarks.child ROUTE MODEL [--bundle REF --lock FILE] [--measure N] [--weights random]`. Lines on stdout
are JSON; `first-output` is what the parent's clock stops at.
"""

import argparse
import itertools
import json
import sys
import time
from typing import Any

ROUTES = ("eager", "jit", "mega-cache", "save-mega-cache", "ours")


def main() -> None:
    options = _parse()
    marks = {"imports": time.perf_counter()}
    import torch

    from benchmarks.models import MODELS

    marks["torch"] = time.perf_counter()
    source = MODELS[options.model].import_module()
    module = source.build_module(**({"random_weights": True} if options.weights == "random" else {}))
    module = module.to(options.device)
    inputs = tuple(value.to(options.device) for value in source.example_inputs())
    marks["model"] = time.perf_counter()
    with torch.inference_mode():
        run = _route(options, module, torch)
        marks["load"] = time.perf_counter()
        output = run(*inputs)
        float(output.sum())
        marks["call"] = time.perf_counter()
        _say("first-output", seconds=_spans(marks), cpu_seconds=time.thread_time(), modules=_compiler_modules())
        if options.measure:
            speed = _measure(run, inputs, options.measure, options.calls)
            _say("measured", **speed, **_errors(run, module, inputs, torch))
        if options.route == "save-mega-cache":
            content, _ = torch.compiler.save_cache_artifacts()
            with open(options.file, "wb") as file:
                file.write(content)
    counters = getattr(run, "counters", None)
    reasons, miss = list(getattr(run, "reasons", ())), getattr(run, "last_miss", "")
    _say("done", counters=counters, tuned=_tuned(), reasons=reasons, miss=miss)


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
    return parser.parse_args()


def _route(options: argparse.Namespace, module: Any, torch: Any) -> Any:
    if options.route == "eager":
        return module
    if options.route == "ours":
        import aot

        return aot.load(options.reference, module, lock=options.lock, fallback="raise")
    if options.route == "mega-cache":
        with open(options.file, "rb") as file:
            torch.compiler.load_cache_artifacts(file.read())
    return torch.compile(module, mode=options.mode, dynamic=True)


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


def _tuned() -> int | None:
    """How many choices the compiler of this process timed; None where it has none."""
    utils = sys.modules.get("torch._dynamo.utils")
    return None if utils is None else int(utils.counters["inductor"]["select_algorithm_autotune"])


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
