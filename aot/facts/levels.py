"""From the features that code uses to the least level that has them, by the catalogue of `aot.schema.targets`."""

from collections.abc import Iterable

from aot.schema.targets import ARM_FEATURES, X86_FEATURES, X86_LEVELS, level_features

# No ladder for Arm: its later versions demand much that a compiler does not use, and cores have parts of later
# versions (asimddp, of 8.4, is on every 8.2 core of a server).
_LEAST = {"x86_64": tuple(X86_LEVELS), "aarch64": ("armv8-a",)}
_EXTRAS = {"x86_64": X86_FEATURES, "aarch64": ARM_FEATURES}


def level_of(machine: str, features: Iterable[str]) -> str:
    """Return the least level that has `features`, followed by `+feature` for each that it has not, sorted.

    A feature beyond the levels stands on the level that the catalogue puts it above: AMX on x86-64-v4.
    """
    ladder, catalogue, wanted = _LEAST[machine], _EXTRAS[machine], frozenset(features)
    levels = [level_features(name) or frozenset() for name in ladder]
    above = [ladder.index(catalogue[feature].above) for feature in wanted & catalogue.keys()]
    needed = [next(index for index, have in enumerate(levels) if one in have) for one in wanted & levels[-1]]
    least = max((*above, *needed), default=0)
    return "+".join((ladder[least], *sorted(wanted - levels[least])))


def features_of(machine: str, level: str) -> frozenset[str]:
    """Return every feature of `level` ("x86-64-v4+avx512_vnni"); none for a level that this machine does not have."""
    base, *extras = level.split("+")
    have = level_features(base)
    if have is None or base.startswith("x86") != (machine == "x86_64"):
        return frozenset()
    return have.union(extras, *(_EXTRAS[machine][one].needs for one in extras if one in _EXTRAS[machine]))
