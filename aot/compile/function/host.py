"""The host guards of a function: what all its shared objects ask for together, and the very interpreter."""

import platform
from collections.abc import Mapping, Sequence

from aot.compile.host import host_guards
from aot.facts.versions import highest
from aot.schema.artifact import ElfFacts
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile

_FLOORS = ("libc", "libstdcxx")


def function_guards(elves: Sequence[ElfFacts], profile: Profile) -> tuple[HostGuard, ...]:
    """Return the conditions that the bytes and the profile set. Raises BackendFailed as `host_guards` does.

    torch compares the interpreter's patch release, beyond the minor one that its bytecode is tied to.
    """
    found = host_guards(merge_elves(elves), profile, torch=profile.toolchain.torch, of_module=True)
    return (*found, HostGuard(kind="interpreter", value=profile.toolchain.python))


def merge_elves(elves: Sequence[ElfFacts]) -> ElfFacts:
    """Return what several shared objects ask of a host together; of none, what this machine is."""
    floors: Mapping[str, str | None] = {
        name: highest(filter(None, (getattr(elf, f"{name}_floor") for elf in elves))) for name in _FLOORS
    }
    return ElfFacts(
        machine=elves[0].machine if elves else platform.machine(),
        needed=tuple(dict.fromkeys(name for elf in elves for name in elf.needed)),
        libc_floor=floors["libc"],
        libstdcxx_floor=floors["libstdcxx"],
        static_libstdcxx=any(elf.static_libstdcxx for elf in elves),
    )
