"""What the operating system's refusals mean for the cache: one translation, used wherever it writes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aot.errors import AotError, InvalidConfig, LocalStorageFull

ROOM_HINT = "free space on this disk, lower AOT_CACHE_BYTES, or set AOT_CACHE_DIR to a larger one"
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
            hint=ROOM_HINT,
        )
    return InvalidConfig(
        f"could not {wish}: {reason} ({root})",
        hint="set AOT_CACHE_DIR to a directory that this process may write",
    )


def require_room(root: Path, size_bytes: int, *, hint: str = ROOM_HINT) -> None:
    """Raises LocalStorageFull where so many bytes do not fit on the disk of `root`, or of where it is going to be.

    Before a download: one that fails at its last gigabyte has filled the disk for everybody else meanwhile.
    """
    free = free_bytes(root)
    if free is not None and size_bytes > free:
        raise LocalStorageFull(f"{size_bytes} bytes are to be fetched to {root}, where {free} are free", hint=hint)


def free_bytes(root: Path) -> int | None:
    """What the disk of `root`, or of where it is going to be, has room for; None where it does not tell."""
    system = _file_system_of(root)
    return None if system is None or not system.f_blocks else system.f_bavail * system.f_frsize


def is_noexec(place: Path) -> bool:
    """Whether `place`, or where it is going to be, is on a file system mounted noexec: nothing on it can be mapped."""
    system = _file_system_of(place)
    return system is not None and bool(system.f_flag & os.ST_NOEXEC)


def _file_system_of(place: Path) -> os.statvfs_result | None:
    while True:
        try:
            return os.statvfs(place)
        except FileNotFoundError:
            if place.parent == place:
                return None
            place = place.parent
        except OSError:
            return None
