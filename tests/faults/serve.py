"""`python -m registry` on a host whose clock and disk a test turns.

    python -m tests.faults.serve CLOCK serve

The file CLOCK holds the seconds by which the clock is off; `registry-disk-full` beside it makes the disk full. The
registry's own reading of the host's clock is turned; what S3's signatures are made with is not.
"""

import errno
import sys
from datetime import datetime, timedelta
from pathlib import Path

import registry.clock

CLOCK = Path(sys.argv[1])
FULL = CLOCK.with_name("registry-disk-full")
UNLIMITED_PAGES = 1 << 30
real = registry.clock.utc_now


def turned() -> datetime:
    try:
        return real() + timedelta(seconds=float(CLOCK.read_text() or 0))
    except (OSError, ValueError):
        return real()


registry.clock.utc_now = turned  # before anything takes it from there


def fill_disk() -> None:
    """From here on no file grows while FULL is there: neither the database's nor a blob's."""
    from sqlalchemy import Engine, event

    from registry.storage.measure import Measure

    def limit_pages(connection, *_) -> None:
        if connection.dialect.name == "sqlite":
            pages = 1 if FULL.exists() else UNLIMITED_PAGES  # below its size: its size
            connection.connection.cursor().execute(f"PRAGMA max_page_count = {pages}").close()

    event.listen(Engine, "before_cursor_execute", limit_pages)
    write = Measure.write

    def write_or_fail(self: Measure, chunk: bytes) -> None:
        if FULL.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, chunk)

    Measure.write = write_or_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    from registry.__main__ import main

    fill_disk()
    raise SystemExit(main(sys.argv[2:]))
