"""Limits that a container runtime sets by cgroups, version 1 or 2, in this process's group or any group above it.

Sources: cgroups(7), proc(5) on /proc/[pid]/mountinfo, and the kernel's admin-guide/cgroup-v2.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from aot.environment.host import Host

# Version 1 says "no limit" with a huge number of whole pages.
_UNLIMITED_BYTES = 1 << 60


def memory_limit_bytes(host: Host) -> int | None:
    """Return the lowest memory limit; None where there is none."""
    limits = []
    for directory, version in _groups(host, "memory"):
        text = host.text(f"{directory}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}")
        if text is not None and text.strip().isdecimal() and int(text) < _UNLIMITED_BYTES:
            limits.append(int(text))
    return min(limits, default=None)


def oom_kills_file(host: Host) -> str | None:
    """Return the file whose line `oom_kill` counts the processes of this process's group that the kernel ended for
    memory, be it the group's or the host's that was out; None where there is none (version 1 before Linux 4.13)."""
    for directory, version in _groups(host, "memory"):
        path = f"{directory}/{'memory.events' if version == 2 else 'memory.oom_control'}"
        if "oom_kill " in (host.text(path) or ""):
            return path
    return None


def cpu_quota(host: Host) -> float | None:
    """Return the lowest quota in cores (1.5 for 150 ms in each 100 ms); None where there is none."""
    quotas = []
    for directory, version in _groups(host, "cpu"):
        if version == 2:
            quota, _, period = (host.text(f"{directory}/cpu.max") or "").strip().partition(" ")
        else:
            quota = (host.text(f"{directory}/cpu.cfs_quota_us") or "").strip()
            period = (host.text(f"{directory}/cpu.cfs_period_us") or "").strip()
        if quota.isdecimal() and period.isdecimal() and int(period) > 0 and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(host: Host, controller: str) -> Iterator[tuple[str, int]]:
    """Yield this process's group and each one above it, as far as they are mounted, with the cgroup version."""
    paths = _paths(host)
    for mount_point, mounted, version, controllers in _mounts(host):
        if version == 1 and controller not in controllers:
            continue
        path = paths.get(controller if version == 1 else "")
        if path is None:
            continue
        group = PurePosixPath(path)
        # A container sees only its own subtree: what is mounted may be a group below the root, or above ours.
        relative = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        parts = [part for part in relative.parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            yield "/".join([mount_point.rstrip("/"), *parts[:depth]]), version


def _paths(host: Host) -> dict[str, str]:
    """Return this process's group for each version 1 controller, and under "" its version 2 group."""
    paths: dict[str, str] = {}
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _mounts(host: Host) -> Iterator[tuple[str, str, int, frozenset[str]]]:
    """Yield mount point, mounted group, version and controllers of each cgroup file system."""
    for line in (host.text("/proc/self/mountinfo") or "").splitlines():
        head, separator, tail = line.partition(" - ")
        fields, kinds = head.split(), tail.split()
        if not separator or len(fields) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kinds[-1].split(",")) if kinds[0] == "cgroup" else frozenset()
        yield fields[4], fields[3], 1 if kinds[0] == "cgroup" else 2, controllers
