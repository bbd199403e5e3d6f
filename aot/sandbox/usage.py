"""Samples what a tree of processes and its writable places use."""

import errno
import os
import time
from collections.abc import Iterable

from aot.sandbox.tree import Entry, read_kept_bytes, read_kept_once_bytes, read_shared_once_bytes

UNCOUNTABLE_BYTES = 1 << 62


class MemoryMeter:
    """Keeps the highest sample of a tree's resident memory, and says when it is above the limit.

    Or what of it the kernel cannot take back above `room_bytes`: mapped files only fill what is free.
    """

    def __init__(self, limit_bytes: int, room_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._room_bytes = room_bytes
        self._exact_after = 0.0
        self.peak_bytes = 0

    def is_exceeded_by(self, entries: list[Entry]) -> bool:
        total = sum(entry.rss_bytes for entry in entries)
        return self._is_above_limit(entries, total) or self._is_above_room(entries, total)

    def _is_above_room(self, entries: list[Entry], total: int) -> bool:
        room_bytes = self._room_bytes
        if room_bytes is None or total <= room_bytes or (kept := read_kept_bytes(entries)) <= room_bytes:
            return False
        if len(entries) > 1:
            kept = read_kept_once_bytes(entries)
        self.peak_bytes = max(self.peak_bytes, kept)
        return kept > room_bytes

    def _is_above_limit(self, entries: list[Entry], total: int) -> bool:
        if total <= self.peak_bytes:
            return False
        if len(entries) > 1:
            # The plain sum counts a page that forked processes share once for each of them; the exact sum costs
            # milliseconds a gigabyte, so it is taken seldom until the plain one is beyond the limit.
            now = time.monotonic()
            if total <= self._limit_bytes and now < self._exact_after:
                return False
            total = read_shared_once_bytes(entries)
            self._exact_after = now + max(0.5, 20 * (time.monotonic() - now))
        self.peak_bytes = max(self.peak_bytes, total)
        return total > self._limit_bytes


def read_disk_bytes(paths: Iterable[str]) -> int:
    """Bytes that the files below `paths` take on disk. What vanishes meanwhile counts as nothing.

    Directories nested so deep that their path cannot be said count as more than any limit: nobody could tell.
    """
    total = 0
    waiting = list(paths)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return UNCOUNTABLE_BYTES
    return total
