"""The processes below one process, their memory, and how to end them, read from /proc.

Used by the supervisor, which is a child subreaper: whatever its child forks, daemonises or moves to another session
stays below it.
"""

import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Entry(NamedTuple):
    pid: int
    parent: int
    rss_bytes: int
    cpu_seconds: float  # with that of its ended and reaped children


def list_processes() -> list[int]:
    """The processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_entry(pid: int) -> Entry | None:
    """None when the process is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The program's name may hold spaces and parentheses; the fields after the last one do not.
    fields = text[text.rfind(b")") + 2 :].split()
    return Entry(
        pid=pid,
        parent=int(fields[1]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        cpu_seconds=sum(map(int, fields[11:15])) / TICKS,
    )


def find_descendants(root: int) -> list[Entry]:
    """The processes below `root`, without it, parents before children."""
    children: dict[int, list[Entry]] = {}
    for entry in filter(None, map(read_entry, list_processes())):
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
    return sum(_read_rollup(entry, b"Pss:") for entry in entries)


def read_kept_bytes(entries: Iterable[Entry]) -> int:
    """Resident bytes without pages of files, which the kernel takes back where memory is short.

    Shared ones once for each process. The plain figure for a process that does not say.
    """
    return sum(_read_kept_bytes(entry) for entry in entries)


def read_kept_once_bytes(entries: Iterable[Entry]) -> int:
    """The same, each shared page counted once. Slow, as `read_shared_once_bytes` is."""
    return sum(_read_rollup(entry, b"Pss_Anon:", b"Pss_Shmem:") for entry in entries)


def _read_kept_bytes(entry: Entry) -> int:
    try:
        with open(f"/proc/{entry.pid}/status", "rb") as file:
            found = [int(line.split()[1]) for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
    except OSError:
        return entry.rss_bytes
    return sum(found) * 1024 if found else entry.rss_bytes  # a kernel before 4.5 does not tell them apart


def _read_rollup(entry: Entry, *names: bytes) -> int:
    try:
        with open(f"/proc/{entry.pid}/smaps_rollup", "rb") as file:
            found = [int(line.split()[1]) for line in file if line.startswith(names)]
    except OSError:
        return entry.rss_bytes
    return sum(found) * 1024 if found else entry.rss_bytes


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
    """Send a signal; a process, or with a negative `pid` a process group, that is gone is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def read_kernel_oom_kills(path: str | None) -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say.

    `path` is the file of our cgroup that counts them; None: those of the whole host, since boot.
    """
    try:
        with open(path or "/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def is_group_shared(path: str | None, owner: int) -> bool:
    """Whether processes that `owner` did not start, its own ancestors apart, are in the cgroup that `path` counts for.

    True as well where that cannot be told: what the group counts may then be anybody's.
    """
    if path is None:
        return True
    try:
        listed = _list_group(os.path.dirname(path))
    except (OSError, ValueError):
        return True
    ours = {owner, *(entry.pid for entry in find_descendants(owner)), *_list_ancestors(owner)}
    return any(pid not in ours and _is_there(pid) for pid in listed)


def _list_group(directory: str) -> list[int]:
    """The processes of a cgroup and those below it; 0 for each that another PID namespace hides."""
    with open(os.path.join(directory, "cgroup.procs"), encoding="ascii") as file:
        found = [int(line) for line in file]
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found += _list_group(entry.path)
    return found


def _list_ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while (entry := read_entry(pid)) and entry.parent > 0:
        pid = entry.parent
        found.append(pid)
    return found


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # 0 is this process's own group, and there
    except ProcessLookupError:
        return False  # it ended between the two looks
    except PermissionError:
        pass
    return True
