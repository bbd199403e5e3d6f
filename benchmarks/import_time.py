"""What `import aot` takes in a fresh interpreter: the median over interpreters, in milliseconds.

`python -m benchmarks.import_time` prints it; an empty interpreter's own start is not part of it.
"""

import statistics
import subprocess
import sys

RUNS = 15
CODE = "import time; t = time.perf_counter(); import aot; print(1e3 * (time.perf_counter() - t))"


def main() -> int:
    times = []
    for _ in range(RUNS + 1):
        ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        times.append(float(ran.stdout))
    del times[0]  # reads the files from disk
    print(f"import aot: {statistics.median(times):.1f} ms (median of {RUNS}, {min(times):.1f} to {max(times):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
