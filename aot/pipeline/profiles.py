"""Which profiles this machine is: what a worker registers, and what a build on this machine is built for."""

from importlib.metadata import distributions

from aot.compile.toolchain import observe_toolchain
from aot.errors import InvalidConfig, InvalidProfile
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.environment import Environment, Gpu
from aot.schema.names import Name
from aot.schema.profile import Device, Profile, Toolchain


def observe_profiles(environment: Environment, *, only: str | None = None) -> tuple[Profile, ...]:
    """Return this machine's profiles, its own first.

    A CPU worker also serves the lower levels that its CPU covers, since it can run what it builds for them. A GPU
    worker serves its exact device alone: tuning for another card needs that card. `only` keeps one, by name.
    Raises InvalidConfig where nothing can be compiled here, InvalidProfile where nothing is named `only`.
    """
    toolchain = observe_toolchain().toolchain
    packages = {
        found.name.lower().replace("_", "-"): found.version for found in distributions() if found.name and found.version
    }
    profiles = _of_machine(environment, toolchain, packages)
    if only is None:
        return profiles
    kept = tuple(profile for profile in profiles if profile.name == only)
    if not kept:
        names = ", ".join(profile.name for profile in profiles)
        raise InvalidProfile(
            f"this machine is no profile {only!r}; it is {names}", hint="set AOT_PROFILE to one of these"
        )
    return kept


def _of_machine(environment: Environment, toolchain: Toolchain, packages: dict[str, str]) -> tuple[Profile, ...]:
    gpus = environment.node.gpus or ()
    if gpus and toolchain.cuda:
        return (_of_gpu(gpus[0], toolchain, packages),)
    cpu = environment.node.cpu
    if cpu is None:
        raise InvalidConfig("the level of this CPU is not known, so nothing can be compiled for it")
    return tuple(
        Profile(name=Name.parse(f"cpu-{level.target}"), capability=level, toolchain=toolchain, packages=packages)
        for level in _levels_below(cpu)
    )


def _levels_below(cpu: Capability) -> tuple[Capability, ...]:
    if cpu.target not in CPU_X86_LEVELS:
        return (cpu,)
    levels = CPU_X86_LEVELS[: CPU_X86_LEVELS.index(cpu.target) + 1]
    return tuple(Capability.parse(f"cpu:{level}") for level in reversed(levels))


def _of_gpu(gpu: Gpu, toolchain: Toolchain, packages: dict[str, str]) -> Profile:
    words = "".join(letter if letter.isalnum() else "-" for letter in gpu.sku.lower()).strip("-")
    device = Device(sku=gpu.sku, sm_count=gpu.sm_count or 0, memory_bytes=gpu.memory_bytes, mig=gpu.mig)
    return Profile(
        name=Name.parse(f"{words.removeprefix('nvidia-')}"[:100]),
        capability=gpu.capability,
        toolchain=toolchain,
        device=device,
        packages=packages,
    )
