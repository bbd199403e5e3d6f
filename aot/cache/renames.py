"""Giving a file its name on file systems that may say no to a rename that was done, or let a handle go stale.

NFS repeats a request whose answer was lost: the second time the file has its name already, and the answer is that
there is none to rename (RFC 1813, section 4.6). A name that another client has just replaced is answered with a stale
handle; one that another client has open, with busy. None of it says that the bytes are not there, so that is looked
at, and tried again.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PASSING = frozenset({errno.ESTALE, errno.EBUSY, errno.EEXIST, errno.ENOENT, errno.ETXTBSY})
TIMES, PAUSE_SECONDS = 4, 0.05


def rename_into(source: Path, final: Path, *, is_whole: Callable[[], bool]) -> None:
    """Give `source` the name `final`, or find that `final` holds the right bytes by now; then `source` is gone.

    Raises the last OSError, and then both are as they were.
    """
    for left in reversed(range(TIMES)):
        try:
            os.replace(source, final)
            return
        except OSError as error:
            if error.errno in PASSING and is_whole():
                with contextlib.suppress(OSError):
                    source.unlink(missing_ok=True)
                return
            if error.errno not in PASSING or not left:
                raise
        time.sleep(PAUSE_SECONDS)


def unless_stale(read: Callable[[], T]) -> T:
    """Return what `read` returns, called again where a handle went stale: opened anew, the file is there."""
    for left in reversed(range(TIMES)):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last time returns or raises")
