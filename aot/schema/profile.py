"""Profiles: the named targets that workers are and specs ask for."""

from collections.abc import Iterable

from aot.schema.capability import Capability
from aot.schema.codec import Document
from aot.schema.names import Name
from aot.schema.targets import X86_LEVELS

# What Inductor's VecAMX is compiled for (torch/_inductor/cpu_vec_isa.py: the flags of AVX512VNNI and of AMX). A CPU
# with more, like a Sapphire Rapids, runs it.
AMX = Capability("cpu:x86-64-v4+amx_bf16+amx_int8+amx_tile+avx512_vnni")
# CPU targets that have one name everywhere, the higher first: a profile of such a name is known before a worker is it.
CPU_TARGETS: dict[str, Capability] = {
    "cpu-x86-64-v4-amx": AMX,
    **{f"cpu-{level}": Capability(f"cpu:{level}") for level in reversed(X86_LEVELS)},
}


class Toolchain(Document, kw_only=True):
    """What turns a graph into machine code, as versions. `None` where the part is absent."""

    torch: str  # with its local part: "2.13.0+cpu"
    python: str  # "3.11.7"
    compiler: str  # "g++ 12.2.0"
    libc: str  # "glibc 2.36"
    triton: str | None = None
    cuda: str | None = None  # the runtime torch was built for: "13.0"


class Device(Document, kw_only=True):
    """The facts of a card that tuning depends on."""

    sku: str
    sm_count: int
    memory_bytes: int
    mig: str | None = None


class Profile(Document, kw_only=True):
    """A target. `threads` is set only where the profile pins them; otherwise code adapts at run time."""

    name: Name
    capability: Capability
    toolchain: Toolchain
    device: Device | None = None
    threads: int | None = None
    packages: dict[str, str] = {}  # installed distributions that sources may require, by exact version

    @property
    def torch_device(self) -> str:
        """Where programs of this profile live: "cpu" or "cuda", which is torch's word for AMD's cards as well."""
        return "cpu" if self.capability.family == "cpu" else "cuda"

    @property
    def is_cpu_target(self) -> bool:
        """True of a CPU target under the name that it has everywhere, with nothing of one machine in it."""
        return self.device is None and self.threads is None and CPU_TARGETS.get(self.name) == self.capability

    @property
    def is_for_kernels(self) -> bool:
        """True of a target that kernels are built for without its card: no worker is it, and no model is built for it.

        A worker with a card has that card's facts in its profile, under whatever name.
        """
        if self.device is not None or self.capability.family == "cpu":
            return False
        return self.name == kernel_profile_name(self.capability, self.toolchain.triton or "none")


def cpu_target_among(name: Name, profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile of a CPU target that no worker is: what its name says, with the toolchain that others have.

    `profiles` are those of workers; the highest CPU target among them has the toolchain. None for another name, and
    where no worker is for CPUs.
    """
    places = {named: place for place, named in enumerate(CPU_TARGETS)}
    others = [profile for profile in profiles if profile.is_cpu_target and profile.name != name]
    if name not in CPU_TARGETS or not others:
        return None
    like = min(others, key=lambda profile: places[profile.name])
    return Profile(name=name, capability=CPU_TARGETS[name], toolchain=like.toolchain, packages=like.packages)


def device_profile_name(sku: str, mig: str | None = None) -> Name:
    """Return the name of a card's profile. A slice is tuned for itself, so it has a name of its own beside its card's.

    Raises InvalidName for a card whose name has no letter or digit.
    """
    whole = sku if mig is None else f"{sku} mig {mig}"
    words = "".join(letter if letter.isalnum() else "-" for letter in whole.lower()).strip("-")
    return Name.parse(words.removeprefix("nvidia-")[:100])


def kernel_profile_name(capability: Capability, triton: str) -> Name:
    """Return the name of the profile that kernels are built for without its card: what decides their code, no more."""
    words = f"{capability.family}-{capability.target}-triton-{triton}".lower().replace("+", "-")
    return Name.parse(words)
