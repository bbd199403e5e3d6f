"""Capabilities: what code is generated for, and which host may run it.

A capability is `family:target`: `cpu:x86-64-v3`, `cuda:sm_90`, `rocm:gfx942`. The order between them is a partial one,
written as `host.covers(artifact)`. Sources: the x86-64 psABI's micro-architecture levels (each level contains the one
before it); NVIDIA's rule that a cubin runs on the same major version with an equal or higher minor version, and
arch-specific code (suffix `a`) on exactly that architecture only (CUDA C++ programming guide, binary compatibility).
"""

import re
from typing import Self

from aot.errors import InvalidCapability
from aot.schema.text import Text

CPU_X86_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
_SM = re.compile(r"sm_(\d{2,3})([af]?)")
_GFX = re.compile(r"gfx[0-9a-f]{3,5}")
_ARM = re.compile(r"armv[89](?:\.\d)?-a(?:\+[a-z0-9]+)*")


class Capability(Text):
    """`cpu:x86-64-v3`, `cpu:armv8.2-a`, `cuda:sm_90`, `rocm:gfx942`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        family, _, target = text.partition(":")
        known = {
            "cpu": target in CPU_X86_LEVELS or _ARM.fullmatch(target),
            "cuda": _SM.fullmatch(target),
            "rocm": _GFX.fullmatch(target),
        }
        if not known.get(family):
            raise InvalidCapability(
                f"wanted a capability, found {text[:80]!r}",
                hint="for example cpu:x86-64-v3, cuda:sm_90 or rocm:gfx942",
            )
        return cls(text)

    @property
    def family(self) -> str:
        return self.partition(":")[0]

    @property
    def target(self) -> str:
        return self.partition(":")[2]

    def covers(self, other: "Capability") -> bool:
        """True when code generated for `other` runs on a host of this capability."""
        if self == other:
            return True
        if self.family != other.family:
            return False
        if self.family == "cpu":
            return _x86_covers(self.target, other.target)
        if self.family == "cuda":
            return _sm_covers(self.target, other.target)
        return False  # AMD code objects are built for one gfx target each


def _x86_covers(host: str, artifact: str) -> bool:
    if host not in CPU_X86_LEVELS or artifact not in CPU_X86_LEVELS:
        return False
    return CPU_X86_LEVELS.index(host) >= CPU_X86_LEVELS.index(artifact)


def _sm_covers(host: str, artifact: str) -> bool:
    (host_version, host_suffix), (version, suffix) = _sm_parts(host), _sm_parts(artifact)
    if suffix == "a" or host_suffix:
        return host_version == version
    return host_version // 10 == version // 10 and host_version % 10 >= version % 10


def _sm_parts(target: str) -> tuple[int, str]:
    match = _SM.fullmatch(target)
    assert match is not None
    return int(match[1]), match[2]
