"""Locks between processes that share a node's cache, on files that are removed when they are free.

A lock here saves work, it never decides what is true: whoever cannot have one in time goes on without it, and the
rename at the end of a write keeps the store right.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import BinaryIO

from aot import locks

POLL_SECONDS = 0.02
LOOKS = 10  # at the holder's progress, before it counts as stalled
# Holders to wait for, one after the other. The rest is spared where each of them has failed; where one has not, what
# they held the lock for is done.
MOST_TURNS = 4
NAME_SECONDS = 5.0
AWAY_SECONDS = 0.5  # between two looks, at least, of one that did not run meanwhile


@contextlib.contextmanager
def locked(path: Path, *, wait_seconds: float, shared: bool = False, remove: bool = False) -> Iterator[bool]:
    """Hold the lock on `path` during the block; the value says whether it could be had in time.

    `remove` deletes the file afterwards. Never raises: a directory that cannot be written has no locks.
    """
    descriptor = _acquire(path, time.monotonic() + wait_seconds, shared=shared)
    try:
        yield descriptor is not None
    finally:
        _release(path, descriptor, remove=remove)


@contextlib.contextmanager
def locked_in_turn(path: Path, *, stall_seconds: float, progress: Callable[[], Hashable]) -> Iterator[bool]:
    """Hold the lock on `path` during the block, waiting for as long as its holder lives and gets on with its work.

    What `progress` returns changes when it does. One that has not for `stall_seconds` loses its turn: the first to see
    that takes the name from its file, and of all that wait one has the lock on the next file of that name. False where
    there are no locks, and after MOST_TURNS holders. The file is removed afterwards. Never raises, but what `progress`
    raises.
    """
    descriptor = _take_turn(path, stall_seconds=stall_seconds, progress=progress)
    try:
        yield descriptor is not None
    finally:
        _release(path, descriptor, remove=True)


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
        with contextlib.suppress(OSError), open_to_lock(path) as file:
            if try_lock(file.fileno()) and _still_names(path, file.fileno()):
                path.unlink()


def open_to_lock(path: Path) -> BinaryIO:
    """Open a file that is there. Raises OSError.

    For writing where that is allowed: a network file system locks nothing else exclusively (manual pages, section 2,
    flock, NFS details).
    """
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")


def try_lock(descriptor: int) -> bool:
    """Take the lock on an open file if nobody has it. False where there are no locks: then nothing counts as free."""
    try:
        return locks.try_lock(descriptor)
    except OSError:
        return False


def _acquire(path: Path, deadline: float, *, shared: bool) -> int | None:
    while (descriptor := _opened(path)) is not None:
        held = _lock_until(descriptor, deadline, shared=shared)
        if held and _still_names(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not held or time.monotonic() >= deadline:
            return None
    return None


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None


def _release(path: Path, descriptor: int | None, *, remove: bool) -> None:
    if descriptor is None:
        return
    # By another file of that name somebody else has the lock by now.
    if remove and _still_names(path, descriptor):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        locks.unlock(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _take_turn(path: Path, *, stall_seconds: float, progress: Callable[[], Hashable]) -> int | None:
    """The open file with the lock; None where there are no locks, or those before us gave up one after the other."""
    for _ in range(MOST_TURNS):
        if (descriptor := _opened(path)) is None:
            return None
        try:
            held = _wait_turn(path, descriptor, stall_seconds=stall_seconds, progress=progress)
        except BaseException:
            os.close(descriptor)
            raise
        if held and _still_names(path, descriptor):
            return descriptor
        os.close(descriptor)
        if held is None:
            return None
    return None


def _wait_turn(path: Path, descriptor: int, *, stall_seconds: float, progress: Callable[[], Hashable]) -> bool | None:
    """True with the lock, False once the open file is no longer the one to wait for, None where there are no locks."""
    seen: tuple[Hashable] | None = None
    moved_at = looked_at = time.monotonic()
    try:
        while not locks.try_lock(descriptor):
            if not _still_names(path, descriptor):
                return False
            now = time.monotonic()
            # Nobody is judged by an old look; and whoever was stopped himself, the holder with him maybe, has no new.
            if seen is None or now - looked_at >= stall_seconds / LOOKS or now - moved_at >= stall_seconds:
                if (found := (progress(),)) != seen or now - looked_at >= max(stall_seconds / 2, AWAY_SECONDS):
                    moved_at, seen = now, found
                looked_at = now
            if now - moved_at >= stall_seconds:
                return False if _take_name(path, descriptor) else None
            time.sleep(POLL_SECONDS)
    except OSError:
        return None
    return True


def _take_name(path: Path, descriptor: int) -> bool:
    """Make true that the open file is not called `path`; False where that could not be done."""
    # One at a time: the second to come must not take the name from the file that the first has put in its place.
    with locked_directory(path.parent, wait_seconds=NAME_SECONDS) as alone, contextlib.suppress(OSError):
        if alone and _still_names(path, descriptor):
            path.unlink()
    return alone and not _still_names(path, descriptor)


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
