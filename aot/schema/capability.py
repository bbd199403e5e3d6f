"""Capabilities: what code is generated for, and which host may run it.

A capability is `family:target`: `cpu:x86-64-v3`, `cpu:x86-64-v4+amx_tile+avx512_vnni`, `cuda:sm_90a`,
`cuda:compute_90` (PTX), `rocm:gfx942:sramecc+:xnack-`. What each target means, and the source of it, is in
`aot.schema.targets`; one that is not in there is *not known*.

`covers` is a partial order between targets: whatever runs code of the one runs code of the other. `runs` is the
question to a host, whose device is spelled by its bare version: a device of version 9.0 runs `sm_90a` too, while code
for `sm_100` runs on 10.3 and code for `sm_100a` does not.
"""

import re
from functools import lru_cache
from typing import Self

from aot.errors import InvalidCapability
from aot.schema.targets import (
    ARM_FEATURES,
    ARM_LEVELS,
    GFXS,
    SMS,
    X86_FEATURES,
    X86_LEVELS,
    Feature,
    level_features,
)
from aot.schema.text import Text

CPU_X86_LEVELS = tuple(X86_LEVELS)
_SM = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")
_GFX = re.compile(r"gfx(?:[0-9a-f]{3,5}|\d{1,2}(?:-\d)?-generic)")
_SETTING = re.compile(r"(sramecc|xnack)[+-]")
_CPU = re.compile(r"(?:x86-64(?:-v\d)?|armv\d{1,2}(?:\.\d)?-a)")
_FEATURE = re.compile(r"[a-z][a-z0-9_]*")


class Capability(Text):
    """One target, in its one spelling: features sorted, those that the level has left out."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the target that `text` spells, a well-formed one that is not known included.

        Raises InvalidCapability for malformed text and for features that are not known.
        """
        family, _, target = text.partition(":")
        return cls(f"{family}:{_canonical(family, target, text)}")

    @classmethod
    def of_cpu(cls, level: str, features: frozenset[str] | tuple[str, ...]) -> Self:
        """Return `level` with those of a CPU's features that code may be generated for."""
        table, base = _features_of(level), level_features(level)
        if base is None:
            return cls(f"cpu:{level}")
        have = base | frozenset(features)
        ladder = list(X86_LEVELS if level in X86_LEVELS else ARM_LEVELS)
        usable = {
            name
            for name in frozenset(features) & table.keys()
            if have.issuperset(table[name].needs) and ladder.index(table[name].above) <= ladder.index(level)
        }
        return cls.parse("+".join((f"cpu:{level}", *sorted(usable))))

    @property
    def family(self) -> str:
        return self.partition(":")[0]

    @property
    def target(self) -> str:
        return self.partition(":")[2]

    @property
    def level(self) -> str:
        """The target without its features: "x86-64-v4" of "x86-64-v4+amx_tile"."""
        return self.target.partition("+")[0]

    @property
    def features(self) -> frozenset[str]:
        """The features of a CPU beyond its level; empty for everything else."""
        return frozenset(self.target.split("+")[1:]) if self.family == "cpu" else frozenset()

    @property
    def is_known(self) -> bool:
        """True when the catalogue has this target; else nothing is known of what runs it."""
        match self.family:
            case "cuda":
                _, version, suffix = _sm_parts(self.target)
                return version in SMS and suffix in SMS[version].suffixes
            case "rocm":
                processor, *settings = self.target.split(":")
                return processor in GFXS and {setting[:-1] for setting in settings} <= set(GFXS[processor].settings)
            case _:
                return level_features(self.level) is not None

    def covers(self, other: "Capability") -> bool:
        """True when whatever runs code generated for this target runs code generated for `other`: a partial order."""
        if self == other:
            return True
        if self.family != other.family or not (self.is_known and other.is_known):
            return False
        match self.family:
            case "cuda":
                return _sm_covers(_sm_parts(self.target), _sm_parts(other.target))
            case "rocm":
                return _gfx_covers(self.target, other.target)
            case _:
                return _every_feature(self.target) >= _every_feature(other.target)

    def runs(self, code: "Capability") -> bool:
        """True when a host whose device or CPU is of this capability runs what is generated for `code`."""
        return self.is_known and code.is_known and self._whole().covers(code)

    def _whole(self) -> "Capability":
        """The most that a device of this version runs: a card of 9.0, which NVML calls 9.0, is all of `sm_90a`."""
        if self.family == "cuda":
            kind, version, suffix = _sm_parts(self.target)
            if kind == "sm" and not suffix and "a" in SMS[version].suffixes:
                return Capability(f"{self}a")
        return self


def _canonical(family: str, target: str, text: str) -> str:
    match family:
        case "cuda" if _SM.fullmatch(target):
            return target
        case "rocm":
            processor, *settings = target.split(":")
            names = [setting[:-1] for setting in settings]
            if _GFX.fullmatch(processor) and all(map(_SETTING.fullmatch, settings)) and len(set(names)) == len(names):
                return ":".join((processor, *sorted(settings)))
        case "cpu":
            level, *features = target.split("+")
            if _CPU.fullmatch(level) and all(map(_FEATURE.fullmatch, features)):
                return _canonical_cpu(level, frozenset(features), text)
    raise InvalidCapability(
        f"wanted a capability, found {text[:80]!r}", hint="for example cpu:x86-64-v3, cuda:sm_90 or rocm:gfx942"
    )


@lru_cache(maxsize=256)
def _canonical_cpu(level: str, features: frozenset[str], text: str) -> str:
    """Return the one spelling of a set of features: the highest level in it, then what that level has not."""
    base = level_features(level)
    if base is None:
        return "+".join((level, *sorted(features)))
    table, ladder = _features_of(level), list(X86_LEVELS if level in X86_LEVELS else ARM_LEVELS)
    have = set(base)
    for name in sorted(features - base):
        if name not in table:
            raise _unknown_feature(name, table, text)
        if ladder.index(table[name].above) > ladder.index(level):
            raise InvalidCapability(f"{name} needs at least {table[name].above}, found {text[:80]!r}")
        have |= {name, *table[name].needs}
    if sum(name.startswith("sve_vl") for name in have) > 1:
        raise InvalidCapability(f"wanted one vector length, found several in {text[:80]!r}")
    highest = [name for name in ladder if (level_features(name) or frozenset()) <= have][-1]
    return "+".join((highest, *sorted(have - (level_features(highest) or frozenset()))))


def _unknown_feature(name: str, table: dict[str, Feature], text: str) -> InvalidCapability:
    from difflib import get_close_matches  # only a mistake pays for it

    near = get_close_matches(name, table, n=3) or sorted(table)
    return InvalidCapability(f"{name!r} in {text[:80]!r} is no known feature", hint=f"one of {', '.join(near)}")


def _features_of(level: str) -> dict[str, Feature]:
    return X86_FEATURES if level.startswith("x86") else ARM_FEATURES


@lru_cache(maxsize=256)
def _every_feature(target: str) -> frozenset[str]:
    level, *extras = target.split("+")
    # The machine is one of them, so that no x86 is ever compared with an Arm by features alone.
    return (level_features(level) or frozenset()) | frozenset(extras) | {level[:3]}


def _sm_parts(target: str) -> tuple[str, int, str]:
    match = _SM.fullmatch(target)
    assert match is not None
    return match[1], int(match[2]), match[3]


def _sm_covers(upper: tuple[str, int, str], lower: tuple[str, int, str]) -> bool:
    (kind, version, suffix), (low_kind, low, low_suffix) = upper, lower
    if low_kind == "sm" and kind != "sm":
        return False  # no device is known of which PTX speaks
    if low_suffix == "a":
        return suffix == "a" and version == low
    if low_suffix == "f":
        return suffix != "" and version // 10 == low // 10 and version >= low
    if low_kind == "compute":
        return version >= low
    if version != low and (SMS[version].tegra or SMS[low].tegra):
        return False
    return version // 10 == low // 10 and version >= low


def _gfx_covers(upper: str, lower: str) -> bool:
    (processor, *settings), (low, *low_settings) = upper.split(":"), lower.split(":")
    # Code that fixes no setting runs with either; code that fixes one runs with that one alone.
    return (processor == low or processor in GFXS[low].generic_of) and set(settings) >= set(low_settings)
