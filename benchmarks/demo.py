"""`make demo`: the main job on one machine, with a real model, and what it is worth.

Starts `aot up`, builds MiniLM for this CPU, then starts one fresh process for each way to run it and prints a table.
"""

import json
import shutil
import sys
import time
from pathlib import Path

from benchmarks.models import MODELS
from benchmarks.service import ROOT, Service, running_service
from benchmarks.starts import Start, clean_environ, count_processes, start_child

MODEL = MODELS["minilm"]
HEADER = ("route", "first output", "p50", "max error", "eager's", "processes", "tuned")


def main() -> int:
    data = ROOT / "demo-data"
    shutil.rmtree(data, ignore_errors=True)
    say(f"starting the service in {data.name}/")
    with running_service(data) as service:
        bundles = {
            "minilm": build(service, "minilm"),
            "minilm-frozen": build(service, "minilm-frozen", "--freeze", "--weights", str(write_weights(data))),
        }
        for reference in bundles.values():
            service.aot("pull", reference, quiet=True)
        print(service.aot("ls"))
        rows = measure(service, bundles)
        print_table(rows)
        return show_second_weights(service, bundles["minilm"])


def write_weights(data: Path) -> Path:
    """A checkpoint whose names are the module's own, which is what a frozen build folds in."""
    from safetensors.torch import save_file

    path = data / "minilm.safetensors"
    module = MODEL.import_module().build_module()
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)
    return path


def build(service: Service, name: str, *extra: str) -> str:
    """Submit, follow, and return the reference pinned to the digest."""
    started = time.perf_counter()
    requirements = [part for pin in MODEL.requirements for part in ("--require", pin)]
    answer = service.aot(
        "build", f"{name}:demo", "--source", str(MODEL.source), "--entry", MODEL.entry, *requirements, *extra, "--json"
    )
    say(f"{name}: submit to published in {time.perf_counter() - started:.0f} s")
    return f"default/{name}@{json.loads(answer)['bundle']}"


def measure(service: Service, bundles: dict[str, str]) -> list[tuple[str, ...]]:
    """One fresh process a route, each with compiler caches of its own; JIT's second start finds its own warm."""
    caches, saved = service.data / "caches", service.data / "mega-cache.bin"
    environ = {
        "eager": clean_environ(caches / "eager"),
        "JIT, cold": clean_environ(caches / "jit"),
        "JIT, warm cache": clean_environ(caches / "jit"),
        "Mega-Cache": clean_environ(caches / "mega"),
        "ours": clean_environ(caches / "ours", **service.environ),
        "ours, frozen": clean_environ(caches / "frozen", **service.environ),
    }
    arguments = {
        "eager": ["eager", MODEL.name],
        "JIT, cold": ["save-mega-cache", MODEL.name, "--file", str(saved)],
        "JIT, warm cache": ["jit", MODEL.name],
        "Mega-Cache": ["mega-cache", MODEL.name, "--file", str(saved)],
        "ours": ["ours", MODEL.name, "--reference", bundles["minilm"]],
        "ours, frozen": ["ours", MODEL.name, "--reference", bundles["minilm-frozen"]],
    }
    # Both begin on empty caches, so they are counted by another run on empty ones.
    counted = {
        "JIT, cold": clean_environ(caches / "jit-counted"),
        "Mega-Cache": clean_environ(caches / "mega-counted"),
    }
    rows = []
    for route in arguments:
        say(f"measuring: {route}")
        start = start_child([*arguments[route], "--measure", "3"], environ[route])
        processes = count_processes(arguments[route], counted.get(route, environ[route]))
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


def tuned(service: Service, bundles: dict[str, str], route: str, start: Start) -> str:
    if not route.startswith("ours"):
        return "-" if start.done["tuned"] is None else str(start.done["tuned"])
    reference = bundles["minilm-frozen" if "frozen" in route else "minilm"]
    (signed,) = json.loads(service.aot("show", reference, "--json"))
    kernels = [one for artifact in json.loads(signed["manifest"])["artifacts"] for one in artifact.get("kernels", [])]
    return str(sum(kernel.get("candidates", 0) > 1 for kernel in kernels))


def show_second_weights(service: Service, reference: str) -> int:
    """Load other weights of the same architecture with the same bundle, and say whether they are right."""
    arguments = ["ours", MODEL.name, "--reference", reference, "--weights", "random", "--measure", "1"]
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
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
