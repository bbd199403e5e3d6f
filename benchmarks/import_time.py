"""What `import aot` takes in a fresh interpreter: the median over interpreters, in milliseconds.

`python -m benchmarks.import_time` prints it and writes `benchmarks/results/import-time-<host>.json`; an empty
interpreter's own start is not part of it.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.cold_start import RESULTS, default_label, host

RUNS = 15
CODE = "import time; t = time.perf_counter(); import aot; print(1e3 * (time.perf_counter() - t))"


def main() -> int:
    times = [import_once() for _ in range(RUNS + 1)][1:]  # the first reads the files from disk
    report = {"host": host(), **summarise(times)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"import-time-{default_label()}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"import aot: {report['median_ms']} ms (median of {RUNS}, {report['low_ms']} to {report['high_ms']})")
    return 0


def import_once() -> float:
    """Milliseconds in an interpreter of its own."""
    return float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout)


def summarise(times: list[float]) -> dict[str, Any]:
    low, median, high = (round(value, 1) for value in (min(times), statistics.median(times), max(times)))
    return {"runs": len(times), "median_ms": median, "low_ms": low, "high_ms": high}


if __name__ == "__main__":
    sys.exit(main())
