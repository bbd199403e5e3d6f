"""What the operating system's refusals mean for the cache: one translation, used wherever it writes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aot.errors import AotError, InvalidConfig, LocalStorageFull

NOEXEC_HINT = "set AOT_CACHE_DIR to a directory of a file system that is not mounted noexec; `aot doctor` looks at it"


@contextmanager
def translated(root: Path, wish: str) -> Iterator[None]:
    """Turn an OSError of the block into LocalStorageFull or InvalidConfig."""
    try:
        yield
    except OSError as error:
        raise cache_error(error, root, wish) from error


def cache_error(error: OSError, root: Path, wish: str) -> AotError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalStorageFull(
            f"could not {wish}: {reason} ({root})",
            hint="free space on this disk, lower AOT_CACHE_BYTES, or set AOT_CACHE_DIR to a larger one",
        )
    return InvalidConfig(
        f"could not {wish}: {reason} ({root})",
        hint="set AOT_CACHE_DIR to a directory that this process may write",
    )


def is_noexec(place: Path) -> bool:
    """Whether `place`, or where it is going to be, is on a file system mounted noexec: nothing on it can be mapped."""
    while True:
        try:
            return bool(os.statvfs(place).f_flag & os.ST_NOEXEC)
        except FileNotFoundError:
            if place.parent == place:
                return False
            place = place.parent
        except OSError:
            return False
