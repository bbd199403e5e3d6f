"""Locks between processes: `flock` on open files, which end with the process that holds them however it ends.

The one place that calls it. Each user says for himself what a lock is for: the node's cache goes on without one
(`aot.cache.locks`), a data directory is served by one process or none (`claimed`).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from aot.errors import DirectoryInUse, InvalidConfig


def try_lock(file: int | IO[str] | IO[bytes], *, shared: bool = False) -> bool:
    """Take the lock on an open file; False where another open file has it. Raises OSError where there are no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int | IO[str] | IO[bytes]) -> None:
    """Give the lock back: said aloud where a forked child shares the descriptor and would keep it. Raises OSError."""
    fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def claimed(path: Path, *, hint: str) -> Iterator[None]:
    """Serve the directory of `path`, which holds this process's id meanwhile, as the only one.

    Raises DirectoryInUse naming the process that serves it, InvalidConfig for a file system that has no locks.
    """
    with path.open("a+") as file:
        try:
            free = try_lock(file)
        except OSError as error:
            raise InvalidConfig(
                f"{path.parent} cannot be locked: {error.strerror}", hint="put it on a disk of this machine"
            ) from error
        if not free:
            file.seek(0)
            raise DirectoryInUse(
                f"{path.parent} is served already, by process {file.read().strip() or 'unknown'}", hint=hint
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
