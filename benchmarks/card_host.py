"""What a card is, and what its tests say: `python -m benchmarks.card_host FILE` runs them and leaves their output."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.starts import ROOT

# Where they are: collecting the whole suite would need its servers.
GPU_TESTS = ("tests/gpu", "tests/unit/test_environment_nvidia.py")


def run_tests(log: Path) -> str:
    """Run the suite's GPU tests, keep their output, and return pytest's last line."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-q", *GPU_TESTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    text = (ended.stdout + ended.stderr[-4000:]).replace(str(ROOT), ".").replace(sys.prefix, "PREFIX")
    log.write_text(text)
    lines = ended.stdout.strip().splitlines()
    print(lines[-1] if lines else ended.stderr[-300:])
    return lines[-1] if lines else f"ended with {ended.returncode}"


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


def label_of(host: Mapping[str, Any]) -> str:
    """Return the name of the file of results of such a host: `h200-torch-2.11.0`."""
    words = re.sub(r"[^a-z0-9]+", "-", host.get("card", "cpu").lower().replace("nvidia", "")).strip("-")
    return f"{words}-torch-{host['torch'].partition('+')[0]}"


if __name__ == "__main__":
    run_tests(Path(sys.argv[1]))
