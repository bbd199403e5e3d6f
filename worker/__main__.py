"""`python -m worker`: serve builds for the profiles that this machine is."""

import logging
import signal
import sys

from aot.errors import AotError
from worker.app import run_worker
from worker.settings import Settings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    signal.signal(signal.SIGTERM, _leave)
    try:
        run_worker(Settings.from_environ())
    except AotError as error:
        print(f"worker: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    return 0


def _leave(number: int, frame: object) -> None:
    # Until Celery installs its own handlers; then a first SIGTERM is a warm shutdown.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
