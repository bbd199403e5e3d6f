"""Locks between processes that share a node's cache, on files that are removed when they are free.

A lock here saves work, it never decides what is true: whoever cannot have one in time goes on without it, and the
rename at the end of a write keeps the store right.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from aot import locks

POLL_SECONDS = 0.02


@contextlib.contextmanager
def locked(path: Path, *, wait_seconds: float, shared: bool = False, remove: bool = False) -> Iterator[bool]:
    """Hold the lock on `path` during the block; the value says whether it could be had in time.

    `remove` deletes the file afterwards. Never raises: a directory that cannot be written has no locks.
    """
    descriptor = _acquire(path, time.monotonic() + wait_seconds, shared=shared)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            if remove:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                locks.unlock(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)


@contextlib.contextmanager
def locked_directory(path: Path, *, wait_seconds: float, shared: bool = False) -> Iterator[bool]:
    """Like `locked`, on a directory that is there: it needs neither space on the disk nor the right to write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _lock_until(descriptor, time.monotonic() + wait_seconds, shared=shared)
    finally:
        with contextlib.suppress(OSError):
            locks.unlock(descriptor)
        os.close(descriptor)


def sweep_locks(directory: Path) -> None:
    """Remove the lock files that nobody holds: those of processes that died with them."""
    for path in directory.glob("*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if try_lock(file.fileno()):
                path.unlink()


def try_lock(descriptor: int) -> bool:
    """Take the lock on an open file if nobody has it. False where there are no locks: then nothing counts as free."""
    try:
        return locks.try_lock(descriptor)
    except OSError:
        return False


def _acquire(path: Path, deadline: float, *, shared: bool) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return None
        held = _lock_until(descriptor, deadline, shared=shared)
        if held and _still_names(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not held or time.monotonic() >= deadline:
            return None


def _lock_until(descriptor: int, deadline: float, *, shared: bool) -> bool:
    try:
        while not locks.try_lock(descriptor, shared=shared):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
    except OSError:
        return False
    return True


def _still_names(path: Path, descriptor: int) -> bool:
    # The holder before us may have removed the file: a lock on what no longer has a name excludes nobody.
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:  # gone, or on a network file system a stale handle, which is the same
        return False
