"""`make demo`: the main job on one machine, with a real model, and what it is worth.

Starts `aot up`, builds MiniLM for this CPU, then starts one fresh process for each way to run it and prints a table.
All files lie in one directory; it fails when one of its processes is still alive at its end.
`python -m benchmarks.demo [--data DIR] [--model NAME] [--routes "eager; ours"]` is a smaller one.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.confined import leaving_nothing
from benchmarks.models import MODELS, Model
from benchmarks.service import ROOT, Service, running_service
from benchmarks.starts import Start, clean_environ, count_processes, start_child

DATA = ROOT / "demo-data"
FROZEN = "ours, frozen"
ROUTES = ("eager", "JIT, cold", "JIT, warm cache", "Mega-Cache", "ours", FROZEN)
HEADER = ("route", "first output", "p50", "max error", "eager's", "processes", "tuned")
LEGEND = """\
first output: from the start of a fresh process, one a row: tenths of a second are noise; p50: the median call after it
max error: against the same module in float64; eager's: that of eager; processes: programs that the process started
tuned: kernels that were chosen among several by timing them"""
# The table and the steps to it are what a person came for, not how a library reads its checkpoint.
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def main(words: Sequence[str] | None = None) -> int:
    options = _parse(words)
    data = options.data.absolute()
    if data == DATA:
        shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700, exist_ok=True)
    with leaving_nothing(data):
        code = show(MODELS[options.model], data, options.routes)
    say("nothing of it is running any more")
    return code


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.demo")
    parser.add_argument("--data", type=Path, default=DATA, help="a directory of its own")
    parser.add_argument("--model", choices=tuple(MODELS), default="minilm")
    parser.add_argument("--routes", type=_routes, default=ROUTES, help='several, separated by "; "')
    return parser.parse_args(words)


def _routes(text: str) -> tuple[str, ...]:
    routes = tuple(text.split("; "))
    if unknown := [route for route in routes if route not in ROUTES]:
        raise argparse.ArgumentTypeError(f"wanted some of {'; '.join(ROUTES)}, found {unknown[0]!r}")
    return routes


def show(model: Model, data: Path, routes: Sequence[str]) -> int:
    """Build `model`, print the table of `routes` and the run with a second set of weights; 1 where that is wrong."""
    say(f"starting the service in {data.name}/")
    with running_service(data) as service:
        bundles = {"ours": build(service, model, model.name)}
        if FROZEN in routes:
            weights = write_weights(model, data)
            bundles[FROZEN] = build(service, model, f"{model.name}-frozen", "--freeze", "--weights", str(weights))
        for reference in bundles.values():
            service.aot("pull", reference, quiet=True)
        print(service.aot("ls"))
        print_table(measure(service, model, bundles, routes))
        say(LEGEND)
        return show_second_weights(service, model, bundles["ours"])


def write_weights(model: Model, data: Path) -> Path:
    """A checkpoint whose names are the module's own, which is what a frozen build folds in."""
    from safetensors.torch import save_file

    os.environ.update(QUIET)
    path = data / f"{model.name}.safetensors"
    module = model.import_module().build_module()
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)
    return path


def build(service: Service, model: Model, name: str, *extra: str) -> str:
    """Submit, follow, and return the reference pinned to the digest."""
    started = time.perf_counter()
    requirements = [part for pin in model.requirements for part in ("--require", pin)]
    answer = service.aot(
        "build", f"{name}:demo", "--source", str(model.source), "--entry", model.entry, *requirements, *extra, "--json"
    )
    say(f"{name}: submit to published in {time.perf_counter() - started:.0f} s")
    return f"default/{name}@{json.loads(answer)['bundle']}"


def measure(service: Service, model: Model, bundles: Mapping[str, str], routes: Sequence[str]) -> list[tuple[str, ...]]:
    """One fresh process a route, each with compiler caches of its own; JIT's second start finds its own warm."""
    caches, saved = service.data / "caches", service.data / "mega-cache.bin"
    places = {"eager": "eager", "JIT, cold": "jit", "JIT, warm cache": "jit", "Mega-Cache": "mega"}
    environ = {route: clean_environ(caches / place) for route, place in places.items() if route in routes}
    environ |= {route: clean_environ(caches / route.split()[-1], **service.environ) for route in bundles}
    arguments = {
        "eager": ["eager", model.name],
        "JIT, cold": ["save-mega-cache", model.name, "--file", str(saved)],
        "JIT, warm cache": ["jit", model.name],
        "Mega-Cache": ["mega-cache", model.name, "--file", str(saved)],
        **{route: ["ours", model.name, "--reference", reference] for route, reference in bundles.items()},
    }
    # Both begin on empty caches, so they are counted by another run on empty ones.
    fresh = {"JIT, cold": "jit-counted", "Mega-Cache": "mega-counted"}
    rows = []
    for route in routes:
        say(f"measuring: {route}")
        start = start_child([*arguments[route], "--measure", "3"], environ[route])
        counted = clean_environ(caches / fresh[route]) if route in fresh else environ[route]
        processes = count_processes(arguments[route], counted)
        rows.append(row(route, start, processes, tuned(service, bundles, route, start)))
    return rows


def row(route: str, start: Start, processes: list[str], kernels: str) -> tuple[str, ...]:
    measured = start.measured
    return (
        route,
        f"{start.seconds:.2f} s",
        f"{measured['p50_ms']:.2f} ms",
        f"{measured['error']:.1e}",
        f"{measured['eager_error']:.1e}",
        str(len(processes)),
        kernels,
    )


def tuned(service: Service, bundles: Mapping[str, str], route: str, start: Start) -> str:
    """How many kernels were chosen among several by timing them."""
    if route not in bundles:
        return "-" if start.done["tuned"] is None else str(start.done["tuned"])
    (signed,) = json.loads(service.aot("show", bundles[route], "--json"))
    kernels = [one for artifact in json.loads(signed["manifest"])["artifacts"] for one in artifact.get("kernels", [])]
    return str(sum(kernel.get("candidates", 0) > 1 for kernel in kernels))


def show_second_weights(service: Service, model: Model, reference: str) -> int:
    """Load other weights of the same architecture with the same bundle, and say whether they are right."""
    arguments = ["ours", model.name, "--reference", reference, "--weights", "random", "--measure", "1"]
    start = start_child(arguments, clean_environ(service.data / "caches" / "second", **service.environ))
    measured = start.measured
    counters = start.done["counters"]
    answered = counters["compiled"] + counters["eager_won"] == counters["calls"]
    right = measured["error"] <= 4 * measured["eager_error"] + 1e-6 and answered
    print(
        f"\nthe same bundle with a second set of weights: first output {start.seconds:.2f} s, max error "
        f"{measured['error']:.1e} (eager {measured['eager_error']:.1e}): {'right' if right else 'WRONG'}"
    )
    return 0 if right else 1


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(line[column]) for line in (HEADER, *rows)) for column in range(len(HEADER))]
    for line in (HEADER, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
