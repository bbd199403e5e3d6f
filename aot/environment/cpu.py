"""The CPU: its level, model, features, and how many of its cores this process may use.

Sources: the x86-64 psABI's micro-architecture levels, in the spelling of /proc/cpuinfo (abm holds lzcnt, pni is SSE3,
and the kernel takes xsave and avx away where OSXSAVE is not usable); Arm's list of features that each architecture
version makes mandatory, in the spelling of the kernel's elf_hwcaps.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from aot.environment.cgroup import cpu_quota
from aot.environment.host import Host
from aot.schema.capability import Capability

_X86_LEVELS = (
    ("x86-64", frozenset(("cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2", "lm"))),
    ("x86-64-v2", frozenset(("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"))),
    ("x86-64-v3", frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"))),
    ("x86-64-v4", frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))),
)
_ARM_LEVELS = (
    ("armv8-a", frozenset(("fp", "asimd"))),
    ("armv8.1-a", frozenset(("atomics", "asimdrdm", "crc32"))),
    ("armv8.2-a", frozenset(("dcpop",))),
    ("armv8.3-a", frozenset(("fcma", "jscvt", "lrcpc"))),
    ("armv8.4-a", frozenset(("asimddp", "dit", "flagm", "ilrcpc", "uscat"))),
    ("armv8.5-a", frozenset(("flagm2", "frint", "sb"))),
    ("armv9-a", frozenset(("sve2",))),
)


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
        for level, wanted in _X86_LEVELS if self.machine == "x86_64" else _ARM_LEVELS:
            if not wanted <= frozenset(self.features):
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
