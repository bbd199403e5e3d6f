"""Files of a cache, opened by whoever has not written it: a command may leave links where its entries were."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_PLACE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no wait for a writer of a pipe


def open_plain(directory: Path, path: str) -> BinaryIO:
    """Open the regular file `path` below `directory`, which may itself lie behind a link; none on the way from there.

    Raises OSError, also for a link and for what is no regular file.
    """
    *places, name = path.split("/")
    inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place in places:
            outside, inside = inside, os.open(place, _PLACE, dir_fd=inside)
            os.close(outside)
        found = os.open(name, _FILE, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(found, "rb")


def read_plain(directory: Path, path: str, *, most_bytes: int = -1) -> bytes:
    """Return the content of what `open_plain` opens, `most_bytes` of it at most. Raises OSError."""
    with open_plain(directory, path) as file:
        return file.read(most_bytes)
