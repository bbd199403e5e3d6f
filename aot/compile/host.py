"""The host guards of a compiled package, from what its bytes say and what the profile pins."""

from collections.abc import Iterable
from pathlib import Path

from aot.compile.options import captures_graphs
from aot.errors import BackendFailed
from aot.facts import read_cubin
from aot.schema.artifact import ElfFacts
from aot.schema.capability import Capability
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe

# The oldest driver of each major release of CUDA, which runs what every minor one of it compiled (CUDA compatibility
# guide, minor version compatibility; CUDA 13.0 release notes, table 3).
_OLDEST_DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}


def capability_of(profile: Profile, cubins: Iterable[Path]) -> Capability:
    """Return what the code really is for: kernels compiled for `sm_90a` run on that architecture and on no other."""
    exact = [found for found in (read_cubin(path).capability for path in cubins) if found.endswith("a")]
    return max(exact, default=profile.capability)


def host_guards(
    elf: ElfFacts, profile: Profile, *, torch: str, capability: Capability | None = None, of_module: bool = False
) -> tuple[HostGuard, ...]:
    """Return every condition on the host; `torch` is the exact version that compiled, its local part included.

    `of_module`: the fingerprint is of a live module, hence made of bytecode, which another Python cannot compare.

    Raises BackendFailed for a shared object with a second libstdc++ inside, which crashes the process that loads it.
    """
    if elf.static_libstdcxx:
        raise BackendFailed(
            "the C++ compiler linked libstdc++ statically: two copies in one process crash it at load",
            hint="let g++ on PATH be the system's; `aot doctor` lists the compilers",
            details={"backend": "g++", "region": "", "log": f"NEEDED: {', '.join(elf.needed)}"},
        )
    cuda = profile.toolchain.cuda if profile.capability.family == "cuda" else None
    values = {
        "machine": elf.machine,
        "capability": capability or profile.capability,
        "torch": torch,
        "libc": elf.libc_floor,
        "libstdcxx": elf.libstdcxx_floor,
        "python": ".".join(profile.toolchain.python.split(".")[:2]) if of_module else None,
        "threads": None if profile.threads is None else str(profile.threads),
        "cuda": cuda,
        "driver": _OLDEST_DRIVERS.get(cuda.split(".")[0]) if cuda else None,
        "sku": profile.device.sku if profile.device else None,
    }
    return tuple(HostGuard(kind=kind, value=value) for kind, value in values.items() if value is not None)


def route_facts(recipe: Recipe, profile: Profile, settings: dict[str, object], isa: str) -> dict[str, str]:
    """Facts for people and for the loader: march, simdlen, threads, whether a CUDA graph is to be captured."""
    facts = {"mode": recipe.mode.value, "frozen": str(recipe.freeze).lower()}
    facts |= {"march": str(settings["cpp.march"]), "simdlen": str(settings["cpp.simdlen"]), "isa": isa}
    facts["threads"] = "dynamic" if profile.threads is None else str(profile.threads)
    if captures_graphs(recipe, profile):
        facts["cuda_graphs"] = "capture"
    return facts
