"""`python -m worker`: serve builds for the profiles that this machine is."""

import logging
import signal
import sys

from aot.errors import AotError, Unavailable
from worker.settings import Settings


def main() -> int:
    """Return the exit code: 0 when it was told to end, 2 for wrong settings, 5 for what may pass, 130 for Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Until Celery installs its own handler, whose first SIGTERM is a warm shutdown. Before the imports, which take
    # seconds: the first process of a container ignores what it does not handle yet.
    signal.signal(signal.SIGTERM, _leave)
    from worker.app import run_worker

    try:
        run_worker(Settings.from_environ())
    except AotError as error:
        print(f"worker: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return 5 if isinstance(error, Unavailable) else 2
    except KeyboardInterrupt:
        return 130
    return 0


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
