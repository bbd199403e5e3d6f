"""The CPU: its level, model, features, and how many of its cores this process may use.

The levels are those of `aot.schema.targets`, in the spelling of /proc/cpuinfo (abm holds lzcnt, pni is SSE3, and the
kernel takes xsave and avx away where OSXSAVE is not usable).
"""

import math
from dataclasses import dataclass
from functools import cached_property

from aot.environment.cgroup import cpu_quota
from aot.environment.host import Host
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.targets import level_features

# psABI levels are enough of a name for an x86 CPU, and Arm's versions for the others; what a CPU has beyond its level
# is in its features.
_ARM_LADDER = ("armv8-a", "armv8.1-a", "armv8.2-a", "armv8.3-a", "armv8.4-a", "armv8.5-a", "armv9-a")


@dataclass(frozen=True)
class Cpus:
    """The processors of /proc/cpuinfo, one dictionary each."""

    processors: tuple[dict[str, str], ...]
    machine: str

    @classmethod
    def read(cls, host: Host) -> "Cpus":
        blocks = (host.text("/proc/cpuinfo") or "").split("\n\n")
        processors = (_fields(block) for block in blocks)
        return cls(tuple(fields for fields in processors if "processor" in fields), host.machine)

    @cached_property
    def features(self) -> tuple[str, ...] | None:
        """What every processor has, sorted: hosts with two kinds of cores run a thread on either."""
        lines = {fields.get("flags") or fields.get("Features") for fields in self.processors}
        if not lines or None in lines:
            return None
        return tuple(sorted(frozenset.intersection(*(frozenset((line or "").split()) for line in lines))))

    @property
    def capability(self) -> Capability | None:
        """The highest level whose features, and those of the levels below it, are all there."""
        if self.features is None:
            return None
        found: str | None = None
        have = frozenset(self.features)
        for level in CPU_X86_LEVELS if self.machine == "x86_64" else _ARM_LADDER:
            if not (level_features(level) or frozenset()) <= have:
                break
            found = level
        return None if found is None else Capability(f"cpu:{found}")

    @property
    def model(self) -> str | None:
        if not self.processors:
            return None
        first = self.processors[0]
        if name := first.get("model name"):
            return name
        parts = [first.get("CPU implementer"), first.get("CPU part")]
        return f"implementer {parts[0]} part {parts[1]}" if all(parts) else None

    def physical_cores(self, allowed: frozenset[int]) -> int | None:
        """Count the distinct cores behind the allowed processors; hyper-threads of one core count once."""
        cores = {
            (fields.get("physical id"), fields["core id"])
            for fields in self.processors
            if "core id" in fields and fields["processor"].isdecimal() and int(fields["processor"]) in allowed
        }
        return len(cores) or None


def sve_bits(host: Host) -> int | None:
    """Return the length of SVE vectors that a new process gets; None without SVE (Linux, arm64/sve.rst)."""
    text = (host.text("/proc/sys/abi/sve_default_vector_length") or "").strip()
    return int(text) * 8 if text.isdecimal() and int(text) > 0 else None


def allowed_processors(host: Host) -> frozenset[int] | None:
    """Return the processors that the scheduler may put this process on: its affinity and its cpuset."""
    for line in (host.text("/proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _parse_list(line.partition(":")[2])
    return None


def usable_cores(host: Host) -> int | None:
    """Return how many cores this process may keep busy: its affinity, and its cgroup's quota rounded up."""
    allowed = allowed_processors(host)
    if not allowed:
        return None
    quota = cpu_quota(host)
    return len(allowed) if quota is None else max(1, min(len(allowed), math.ceil(quota)))


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def _parse_list(text: str) -> frozenset[int] | None:
    """Parse "0-3,8" as the kernel writes it; None for anything else."""
    processors: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return None
        processors.update(range(int(first), int(last or first) + 1))
    return frozenset(processors)
