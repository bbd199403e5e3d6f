"""`python -m aot.compile JOB.json`: the entry of a compile child."""

import os
import sys
from pathlib import Path

from aot.compile.child import main
from aot.sandbox.events import EVENTS_FD

if __name__ == "__main__":
    descriptor = os.environ.get(EVENTS_FD)
    sys.exit(main(Path(sys.argv[1]), events=int(descriptor) if descriptor else None))
