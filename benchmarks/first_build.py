"""What a first build on a machine costs, and a second one: submit to published, split by phase.

`python -m benchmarks.first_build` starts a service on an empty data directory, builds a small model, then another
one, and writes `benchmarks/results/first-build-<host>.json`.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cold_start import RESULTS, default_label, host
from benchmarks.models import EXAMPLES
from benchmarks.service import Service, running_service


def main() -> int:
    data = Path(tempfile.mkdtemp(prefix="aot-first-"))
    try:
        with running_service(data) as service:
            rows = [build(service, "first", "small:build"), build(service, "second", "small:build_wide")]
    finally:
        shutil.rmtree(data, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"first-build-{default_label()}.json").write_text(
        json.dumps({"host": host(), "rows": rows}, indent=2) + "\n"
    )
    for row in rows:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in row["phases"].items())
        print(f"{row['build']:7}: submit to published {row['seconds']:.1f} s; {phases}, proof {row['proof']:.1f} s")
    return 0


def build(service: Service, name: str, entry: str) -> dict[str, Any]:
    started = time.perf_counter()
    arguments = ["build", f"{name}:bench", "--source", str(EXAMPLES / "small"), "--entry", entry, "--json"]
    json.loads(service.aot(*arguments, quiet=True))
    seconds = time.perf_counter() - started
    (signed,) = json.loads(service.aot("show", f"{name}:bench", "--json"))
    manifest = json.loads(signed["manifest"])
    return {
        "build": name,
        "seconds": seconds,
        "phases": manifest["compile_report"]["phases"],
        "compile_seconds": manifest["compile_report"]["regions"][0]["compile_seconds"],
        "proof": manifest["qualification"]["seconds"],
    }


if __name__ == "__main__":
    sys.exit(main())
