"""The memory that there is for a child, whatever limit was asked for: its cgroup's, or the host's.

A child that is stopped at a limit can be told about. One that takes what its cgroup has is ended by the kernel, and
where the group is ended as a whole (`memory.oom.group`, which Kubernetes sets) its worker with it.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aot.environment.cgroup import memory_limit_bytes, oom_kills_file
from aot.environment.host import Host
from aot.environment.node import installed_bytes

# For what lives beside the child: the worker, the supervisor, and what the kernel counts of their files.
BESIDE_BYTES, BESIDE_SHARE = 512 << 20, 8


class RoomOf(StrEnum):
    CGROUP = "cgroup"
    HOST = "host"


@dataclass(frozen=True)
class Room:
    """`total_bytes` is what the cgroup allows or the host has, all its processes together."""

    total_bytes: int
    of: RoomOf

    @property
    def child_bytes(self) -> int:
        """What a child may take of it."""
        return self.total_bytes - min(BESIDE_BYTES, self.total_bytes // BESIDE_SHARE)

    def __str__(self) -> str:
        match self.of:
            case RoomOf.CGROUP:
                return f"the cgroup's memory limit is {self.total_bytes} bytes"
            case RoomOf.HOST:
                return f"the host has {self.total_bytes} bytes of memory"

    @property
    def hint(self) -> str:
        match self.of:
            case RoomOf.CGROUP:
                return "raise the memory limit of the worker's container (memory.max of its cgroup)"
            case RoomOf.HOST:
                return "use a worker with more memory"


def find_room(host: Host | None = None) -> Room | None:
    """Return the smaller of what this process's cgroups allow and what the host has; None where neither says."""
    host = host or Host()
    sizes = ((memory_limit_bytes(host), RoomOf.CGROUP), (installed_bytes(host), RoomOf.HOST))
    return min((Room(size, of) for size, of in sizes if size), key=lambda room: room.total_bytes, default=None)


def find_oom_kills(host: Host | None = None) -> Path | None:
    """Return the file in which this process's cgroup counts what the kernel ended for memory; None without one."""
    host = host or Host()
    found = oom_kills_file(host)
    return host.path(found) if found is not None else None


def capped(memory_bytes: int, room: Room | None) -> int:
    """Return the limit that holds: the one that was asked for, or what there is."""
    return memory_bytes if room is None else min(memory_bytes, room.child_bytes)
