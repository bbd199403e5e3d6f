"""`python -m tests.faults`: one long campaign; 0 when every promise held."""

import os
import secrets
import sys
import tempfile
from pathlib import Path

from tests.faults.campaign import Campaign


def main() -> int:
    seed = int(os.environ.get("AOT_FAULT_SEED") or secrets.randbelow(1 << 31))
    seconds = float(os.environ.get("SOAK_SECONDS") or 1800)
    print(f"AOT_FAULT_SEED={seed} SOAK_SECONDS={seconds:.0f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aot-campaign-", ignore_cleanup_errors=True) as folder:
        kept = os.environ.get("AOT_FAULT_KEEP")
        ledger = Campaign(Path(kept or folder), seed, seconds).run()
    print(ledger.text())
    return 1 if ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
