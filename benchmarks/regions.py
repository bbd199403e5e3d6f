"""Regions against the whole program: what compiling costs and what a call takes, for 6, 12 and 24 equal blocks.

`python -m benchmarks.regions` compiles each twice with warm headers, measures calls in turn, and writes
`benchmarks/results/regions-<host>.json`.
"""

import copy
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aot.schema.recipe import Recipe, Regions
from benchmarks.cold_start import RESULTS, default_label, host
from benchmarks.local_build import Built, compile_locally

LAYERS = (6, 12, 24)
CALLS = 60


def main() -> int:
    import torch

    scratch = Path(tempfile.mkdtemp(prefix="aot-regions-"))
    try:
        compile_locally("small", "build", scratch / "warm", recipe=Recipe())  # headers
        rows = [measure(layers, scratch, torch) for layers in LAYERS]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"regions-{default_label()}.json"
    path.write_text(json.dumps({"host": host(), "rows": rows}, indent=2) + "\n")
    for row in rows:
        print(
            f"{row['layers']:3} blocks: export + compile whole {row['whole_seconds']:.1f} s, regions "
            f"{row['regions_seconds']:.1f} s ({row['times_cheaper']:.1f}x); call whole {row['whole_ms']:.2f} ms, "
            f"regions {row['regions_ms']:.2f} ms, eager {row['eager_ms']:.2f} ms"
        )
    return 0


def measure(layers: int, scratch: Path, torch: Any) -> dict[str, Any]:
    function = f"build{layers}"
    whole = compile_locally("blocks", function, scratch / f"whole-{layers}", recipe=Recipe())
    parts = compile_locally("blocks", function, scratch / f"parts-{layers}", recipe=Recipe(regions=Regions.AUTO))
    eager = copy.deepcopy(whole.module)
    times: dict[str, list[float]] = {"whole": [], "regions": [], "eager": []}
    calls = {"whole": whole.compiled, "regions": parts.compiled, "eager": eager}
    with torch.inference_mode():
        reference = eager(*whole.example)
        errors = {name: float((call(*whole.example) - reference).abs().max()) for name, call in calls.items()}
        for _ in range(CALLS):
            for name, call in calls.items():
                started = time.perf_counter()
                call(*whole.example)
                times[name].append(1e3 * (time.perf_counter() - started))
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    spent = {"whole_seconds": _spent(whole), "regions_seconds": _spent(parts)}
    return {
        "layers": layers,
        **spent,
        "times_cheaper": spent["whole_seconds"] / spent["regions_seconds"],
        **medians,
        "regions_over_whole": medians["regions_ms"] / medians["whole_ms"],
        "largest_difference": errors,
        "counters": parts.compiled.counters,
    }


def _spent(built: Built) -> float:
    """Seconds of export and compile, over all regions."""
    return sum(region.export_seconds + region.compile_seconds for region in built.report.regions)


if __name__ == "__main__":
    sys.exit(main())
