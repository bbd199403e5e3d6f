"""`python -m aot.qualify JOB.json`: the entry of every child of a proof, in the sandbox, from an empty environment."""

import os
import sys
from pathlib import Path

from aot.qualify.child import main
from aot.sandbox.events import EVENTS_FD, write_event


def tell(step: str) -> None:
    if descriptor := os.environ.get(EVENTS_FD):
        write_event(int(descriptor), {"step": step})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), tell))
