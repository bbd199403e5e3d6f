"""The processes below one process, their memory, and how to end them, read from /proc.

Used by the supervisor, which is a child subreaper: whatever its child forks, daemonises or moves to another session
stays below it.
"""

import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Entry(NamedTuple):
    pid: int
    parent: int
    rss_bytes: int


def read_entries() -> list[Entry]:
    """Every process that this one can see. Those that end while being read are left out."""
    entries = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            text = os.read(fd, 4096)
        except OSError:
            continue
        finally:
            os.close(fd)
        # The program's name may hold spaces and parentheses; the fields after the last one do not.
        fields = text[text.rfind(b")") + 2 :].split()
        entries.append(Entry(int(name), int(fields[1]), int(fields[21]) * PAGE_BYTES))
    return entries


def find_descendants(root: int) -> list[Entry]:
    """The processes below `root`, without it, parents before children."""
    children: dict[int, list[Entry]] = {}
    for entry in read_entries():
        children.setdefault(entry.parent, []).append(entry)
    found: list[Entry] = []
    waiting = [root]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += [entry.pid for entry in below]
    return found


def read_shared_once_bytes(entries: Iterable[Entry]) -> int:
    """Resident bytes, each shared page counted once. Slow: the kernel walks the page tables.

    Falls back to the plain figure for a process whose map may not be read.
    """
    return sum(_read_pss_bytes(entry) for entry in entries)


def _read_pss_bytes(entry: Entry) -> int:
    try:
        with open(f"/proc/{entry.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return entry.rss_bytes


def kill_descendants(root: int) -> int:
    """Send SIGKILL to everything below `root`, and return how many there were.

    Everything is stopped before anything is killed, else a tree that forks faster than it is walked outlives us.
    The caller repeats until it has no child left.
    """
    stopped: set[int] = set()
    for _ in range(20):
        fresh = {entry.pid for entry in find_descendants(root)} - stopped
        if not fresh:
            break
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return len(stopped)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def read_kernel_oom_kills() -> int:
    """How many processes the kernel killed for want of memory since boot; 0 where it does not say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
