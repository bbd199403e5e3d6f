"""Which profiles this machine is: what a worker registers, and what a build on this machine is built for."""

from collections.abc import Iterator
from importlib.metadata import distributions

from aot.compile.toolchain import observe_toolchain
from aot.errors import InvalidConfig, InvalidProfile
from aot.rules.software import AMX_KERNEL, check_kernel
from aot.schema.capability import CPU_X86_LEVELS, Capability
from aot.schema.environment import Environment, Gpu, host_cpu
from aot.schema.names import Name
from aot.schema.profile import AMX, CPU_TARGETS, Device, Profile, Toolchain, device_profile_name


def observe_profiles(environment: Environment, *, only: str | None = None) -> tuple[Profile, ...]:
    """Return this machine's profiles, its own first.

    A CPU worker also serves the lower targets that its CPU covers, since it can run what it builds for them. A GPU
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
    if environment.node.cpu is None:
        raise InvalidConfig("the level of this CPU is not known, so nothing can be compiled for it")
    return tuple(
        Profile(name=name, capability=capability, toolchain=toolchain, packages=packages)
        for name, capability in _cpu_targets(environment)
    )


def _cpu_targets(environment: Environment) -> Iterator[tuple[Name, Capability]]:
    """Yield each target that the CPU runs, by name: the levels first, the highest at their head.

    What a machine captures, or builds where nothing is named, is for its level, and AMX is asked for.
    """
    own, cpu = host_cpu(environment.node), environment.node.cpu
    assert own is not None and cpu is not None
    if cpu.target not in CPU_X86_LEVELS:
        yield Name.parse(f"cpu-{cpu.target}"), cpu
        return
    for name, capability in sorted(CPU_TARGETS.items(), key=lambda target: bool(target[1].features)):
        # Without it Linux gives no process the tiles' registers, whatever the CPU has.
        lacks_kernel = capability == AMX and check_kernel(AMX_KERNEL, environment) is not None
        if own.runs(capability) and not lacks_kernel:
            yield Name(name), capability


def _of_gpu(gpu: Gpu, toolchain: Toolchain, packages: dict[str, str]) -> Profile:
    device = Device(sku=gpu.sku, sm_count=gpu.sm_count or 0, memory_bytes=gpu.memory_bytes, mig=gpu.mig)
    return Profile(
        name=device_profile_name(gpu.sku, gpu.mig),
        capability=gpu.capability,
        toolchain=toolchain,
        device=device,
        packages=packages,
    )
