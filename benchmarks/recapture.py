"""What a second capture uploads after one layer of a model has changed, as a share of the bundle.

`python -m benchmarks.recapture [--kinds blocks whole training]` captures a decoder of six layers, then one whose third
layer has another activation, each on empty caches, and counts the bytes of the blobs that the first does not have: what
a client sends to a registry that has the first. Writes `benchmarks/results/recapture-<host>.json`.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from aot.capture.capture import capture
from aot.capture.collect import Collected
from aot.capture.pins import effective_environment
from aot.config import whole_environ
from aot.environment import observe_environment
from aot.schema.digest import Digest
from benchmarks.cold_start import default_label, host
from benchmarks.service import ROOT

PROGRAM = ROOT / "tests" / "integration" / "changed_layer.py"
RESULTS = ROOT / "benchmarks" / "results"
KINDS = ("blocks", "whole", "training")


def main() -> int:
    options = _parse()
    data = Path(tempfile.mkdtemp(prefix="aot-bench-"))
    try:
        shutil.copy(PROGRAM, data / "program.py")
        rows = {kind: measure(kind, data) for kind in options.kinds}
    finally:
        shutil.rmtree(data, ignore_errors=True)
    place = RESULTS / f"recapture-{options.label or default_label()}.json"
    place.write_text(json.dumps({"host": host(), "kinds": rows}, indent=2) + "\n")
    print(json.dumps(rows, indent=2))
    return 0


def measure(kind: str, data: Path) -> dict[str, Any]:
    first = _captured(data, kind)
    second = _captured(data, kind, "--changed")
    new = {digest: size for digest, size in second.items() if digest not in first}
    total, uploaded = sum(second.values()), sum(new.values())
    print(f"{kind}: {uploaded} of {total} bytes are new", file=sys.stderr)
    return {"bundle_bytes": total, "uploaded_bytes": uploaded, "share": uploaded / total, "blobs": len(second)}


def _captured(data: Path, kind: str, *changed: str) -> dict[Digest, int]:
    """Return the blobs of a capture, with their sizes."""
    command = (sys.executable, str(data / "program.py"), kind, *changed)
    environ = whole_environ()
    effective = effective_environment(observe_environment(), environ, command=command)
    # Another directory each time, of another length: nothing of it may be left in an entry.
    with tempfile.TemporaryDirectory(prefix=f"{kind}{'-again' * bool(changed)}-", dir=data) as scratch:
        made: Collected = capture(command, environ=environ, effective=effective, scratch=Path(scratch)).collected
    return {entry.digest: entry.size_bytes for entry in made.entries}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--label", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
