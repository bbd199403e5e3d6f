"""Everything on a card, in one command: the GPU tests, then whole jobs through a service, ours against eager.

`python -m benchmarks.card [--models decoder,resnet] [--pairs 5] [--mode default] [--device cuda]` writes
`benchmarks/results/<card>-<torch>.json` after each model, so that a run that is cut off keeps what it has, and
the tests' output beside it. A model's rows and its own eager baseline are from one run on one machine.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cold_start import RESULTS, compare, start_pairs
from benchmarks.models import MODELS, Model
from benchmarks.service import ROOT, Service, running_service
from benchmarks.starts import clean_environ, start_child

# Where they are: collecting the whole suite would need its servers.
GPU_TESTS = ("tests/gpu", "tests/unit/test_environment_nvidia.py")


def main() -> int:
    options = _parse()
    label = options.label or card_label(options.device)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{label}.json"
    report: dict[str, Any] = {"host": card_host(options.device), "mode": options.mode, "pairs": options.pairs}
    report["tests"] = run_tests(RESULTS / f"{label}-tests.txt") if options.tests else None
    report["models"] = []
    write(path, report)
    data = Path(tempfile.mkdtemp(prefix="aot-card-"))
    try:
        with running_service(data) as service:
            for name in options.models:
                report["models"].append(measure(service, MODELS[name], data / name, options))
                write(path, report)
                print(json.dumps(report["models"][-1]["summary"]))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return 0


def run_tests(log: Path) -> str:
    """Run the suite's GPU tests, keep their output, and return pytest's last line."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-q", *GPU_TESTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    text = (ended.stdout + ended.stderr[-4000:]).replace(str(ROOT), ".").replace(sys.prefix, "PREFIX")
    log.write_text(text)
    lines = ended.stdout.strip().splitlines()
    print(lines[-1] if lines else ended.stderr[-300:])
    return lines[-1] if lines else f"ended with {ended.returncode}"


def measure(service: Service, model: Model, caches: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Build the model through the service, pull it, and start eager and ours in turn."""
    started = time.perf_counter()
    arguments = ["build", f"{model.name}:card", "--source", str(model.source), "--entry", model.entry]
    arguments += [part for pin in model.requirements for part in ("--require", pin)]
    arguments += [part for dimension in model.dimensions for part in ("--dim", dimension)]
    answer = json.loads(service.aot(*arguments, "--mode", options.mode, "--json"))
    build_seconds = time.perf_counter() - started
    reference = f"default/{model.name}@{answer['bundle']}"
    (signed,) = json.loads(service.aot("show", reference, "--json"))
    manifest = json.loads(signed["manifest"])
    service.aot("pull", reference, quiet=True)
    environ = {**service.environ, "AOT_OFFLINE": "1"}
    on_device = ["--device", options.device]
    eager = partial(start_child, ["eager", model.name, *on_device], clean_environ(caches / "eager"))
    ours_arguments = ["ours", model.name, "--reference", reference, *on_device]
    ours = partial(start_child, ours_arguments, clean_environ(caches / "ours", **environ))
    eager_starts, ours_starts = start_pairs(eager, ours, pairs=options.pairs, title=model.name)
    started_as = compare([start.seconds for start in ours_starts], [start.seconds for start in eager_starts])
    steady = {
        "eager": start_child(["eager", model.name, *on_device, "--measure", "3"], clean_environ(caches / "eager")),
        "ours": start_child([*ours_arguments, "--measure", "3"], clean_environ(caches / "ours", **environ)),
    }
    speeds = {name: start.measured for name, start in steady.items()}
    return {
        "model": model.name,
        "title": model.title,
        "build_seconds": build_seconds,
        "phases": manifest["compile_report"]["phases"],
        "proof_seconds": manifest["qualification"]["seconds"],
        "start_proof": manifest["qualification"]["start"],
        "speeds": [artifact["speeds"] for artifact in manifest["artifacts"]],
        "kernels": sum(len(artifact["kernels"]) for artifact in manifest["artifacts"]),
        "bundle_bytes": sum(one["size_bytes"] for artifact in manifest["artifacts"] for one in artifact["files"]),
        "starts": started_as,
        "steady": speeds,
        "counters": ours_starts[0].done["counters"],
        "reasons": ours_starts[0].done["reasons"],
        "summary": {
            "model": model.name,
            "submit_to_published": round(build_seconds, 1),
            "start_ratio": round(started_as["ratio_median"], 3),
            "added_seconds": round(started_as["added_seconds"], 3),
            "p50_ms": {name: round(speed["p50_ms"], 3) for name, speed in speeds.items()},
            "compiled_calls": (ours_starts[0].done["counters"] or {}).get("compiled"),
        },
    }


def card_host(device: str) -> dict[str, Any]:
    """What was measured on. Imports torch: this is about the card that torch sees."""
    import platform

    import torch

    from aot.environment import observe_environment

    node = observe_environment().node
    found = {"cpu": node.cpu_model, "driver": node.driver, "torch": str(torch.__version__), "cuda": torch.version.cuda}
    found["python"] = platform.python_version()
    if device == "cuda":
        found["card"] = torch.cuda.get_device_name()
    return found


def card_label(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    words = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
    return f"{words}-torch-{torch.__version__.partition('+')[0]}"


def write(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["decoder", "resnet"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--mode", default="max-autotune")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--label", default="")
    parser.add_argument("--no-tests", dest="tests", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
