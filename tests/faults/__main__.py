"""`python -m tests.faults [STACK...]`: one long campaign on each stack in turn; 0 when every promise held.

SOAK_SECONDS        how long faults are injected, all campaigns together
AOT_FAULT_SEED      the plan of faults
AOT_FAULT_COMPILER  `real`: workers compile small programs, instead of making bytes up
AOT_FAULT_KEEP      a directory where everything stays, for looking at it afterwards
AOT_FAULT_LEDGER    a file that gets the ledgers as JSON
"""

import json
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.campaign import Campaign
from tests.faults.schedule import FAKE, REAL
from tests.faults.stacks import STACKS


def main(arguments: list[str]) -> int:
    seed = int(os.environ.get("AOT_FAULT_SEED") or secrets.randbelow(1 << 31))
    seconds = float(os.environ.get("SOAK_SECONDS") or 1800)
    stacks = arguments or list(STACKS)
    pace = REAL if os.environ.get("AOT_FAULT_COMPILER") == "real" else FAKE
    print(f"AOT_FAULT_SEED={seed} SOAK_SECONDS={seconds:.0f} on {', '.join(stacks)}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else what was started outlives it
    told, violations = [], 0
    with tempfile.TemporaryDirectory(prefix="aot-campaign-", ignore_cleanup_errors=True) as folder:
        kept = Path(os.environ.get("AOT_FAULT_KEEP") or folder)
        for stack in stacks:
            campaign = Campaign(kept / stack, seed, seconds / len(stacks), on=stack, pace=pace)
            ledger = campaign.run()
            print(f"{stack}, {campaign.seconds:.0f} s of faults\n{ledger.text()}", flush=True)
            violations += len(ledger.violations)
            run = {"stack": stack, "compiler": "real" if pace.real_compiler else "fake", "seed": seed}
            told.append({**run, "seconds": round(campaign.seconds), **ledger.counts()})
    if place := os.environ.get("AOT_FAULT_LEDGER"):
        ran = {"benchmark": "soak", "cores": len(os.sched_getaffinity(0)), "campaigns": told}
        Path(place).write_text(json.dumps(ran, indent=2) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
