"""Which files of a directory a command opened, seen from outside: by inotify, whatever the command is and starts.

From outside, because nothing of ours is then in the user's program, and because it counts what happens: an entry that
was looked up was opened, and a compiler's output is a new file. Times of last access are no alternative: most mounts
keep none. What a watch cannot see: files of directories that were made after it began, which are new anyway.

Source: inotify(7).
"""

import contextlib
import ctypes
import errno
import os
import select
import struct
import threading
from pathlib import Path

from aot.capture.deaf import start_deaf
from aot.capture.listing import directories_of

_IN_OPEN, _IN_ISDIR, _IN_NONBLOCK, _IN_CLOEXEC = 0x20, 0x40000000, os.O_NONBLOCK, os.O_CLOEXEC
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16
_POLL_SECONDS = 0.2
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)  # or closed to us: then nothing in it is kept either


class OpenWatch:
    """Collects the opened files below `directory`, relative to it. `works` is False where the system has no watch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: set[str] = set()
        self._places: dict[int, str] = {}
        self._lost = False
        self._stop = threading.Event()
        self._fd = _start()
        if self._fd is not None and not self._watch_all():
            self._close()
        self._thread: threading.Thread | None = None
        if self._fd is not None:
            self._thread = threading.Thread(target=self._run, name="aot-watch", daemon=True)
            start_deaf(self._thread)

    @property
    def works(self) -> bool:
        """False also where the system had more events than it could keep: then something may be missing."""
        return self._thread is not None and not self._lost

    def finish(self) -> frozenset[str] | None:
        """Return the opened files, and watch no more; None where that is not known."""
        if self._thread is None:
            return None
        self._stop.set()
        self._thread.join()
        self._drain()
        self._close()
        return None if self._lost else frozenset(self._opened)

    def _watch_all(self) -> bool:
        for below, place in directories_of(self._directory):
            number = _libc().inotify_add_watch(self._fd, os.fsencode(place), _IN_OPEN)
            if number < 0 and ctypes.get_errno() in _VANISHED:
                continue
            if number < 0:  # the user's limit of watches
                return False
            self._places[number] = f"{below}/" if below else ""
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._fd], [], [], _POLL_SECONDS)
            if ready:
                self._drain()

    def _drain(self) -> None:
        assert self._fd is not None
        while True:
            try:
                events = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return
            position = 0
            while position < len(events):
                number, mask, _, length = _HEADER.unpack_from(events, position)
                name = events[position + _HEADER.size : position + _HEADER.size + length].rstrip(b"\0")
                position += _HEADER.size + length
                if number < 0:
                    self._lost = True  # IN_Q_OVERFLOW
                elif name and not mask & _IN_ISDIR:
                    self._opened.add(self._places[number] + os.fsdecode(name))

    def _close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _start() -> int | None:
    try:
        number = _libc().inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
    except (OSError, AttributeError):
        return None
    return number if number >= 0 else None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
