"""`python -m registry` on a host whose clock a test turns: the file CLOCK holds the seconds by which it is off.

    python -m tests.faults.serve CLOCK serve

The registry's own reading of the host's clock is turned; what S3's signatures are made with is not.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path

import registry.clock

CLOCK = Path(sys.argv[1])
real = registry.clock.utc_now


def turned() -> datetime:
    try:
        return real() + timedelta(seconds=float(CLOCK.read_text() or 0))
    except (OSError, ValueError):
        return real()


registry.clock.utc_now = turned  # before anything takes it from there

if __name__ == "__main__":
    from registry.__main__ import main

    raise SystemExit(main(sys.argv[2:]))
