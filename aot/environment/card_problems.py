"""What keeps an NVIDIA card from being used, or another one from being used than was meant."""

from collections.abc import Iterator
from dataclasses import replace

from aot.environment.host import Host
from aot.environment.nvidia import observe_nvidia
from aot.environment.packages import torch_build
from aot.environment.problem import Problem
from aot.rules import OLDEST_DRIVERS
from aot.rules.software import check_driver
from aot.schema.environment import Environment, Gpu, NodeFacts

_CHOICE, _ABILITIES = "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"


def card_problems(host: Host) -> Iterator[Problem]:
    """Yield nothing for a host without an NVIDIA driver."""
    variables = {name: value for name, value in host.variables.items() if name != _CHOICE}
    driver, every = observe_nvidia(replace(host, environ=variables))
    if driver is None:
        return
    yield from _libraries(host, driver, every)
    if every:
        yield from _torch(host, driver, every)
        yield from _choice(host, every)


def _libraries(host: Host, driver: str, every: tuple[Gpu, ...] | None) -> Iterator[Problem]:
    if every is None:
        yield Problem(
            kind="no-driver-libraries",
            text=f"the node has NVIDIA driver {driver}, which this container cannot ask ({host.nvml} fails)",
            hint="start the container by the NVIDIA container toolkit (docker run --gpus all; on Kubernetes a limit of "
            "nvidia.com/gpu, or the runtime class nvidia)",
        )
    # Source: NVIDIA Container Toolkit, "Driver Capabilities": libcuda is mounted for `compute`, NVML for `utility`.
    abilities = host.variables.get(_ABILITIES, "")
    if abilities and not {"compute", "all"} & {one.strip() for one in abilities.split(",")}:
        yield Problem(
            kind="no-compute-libraries",
            text=f"{_ABILITIES} is {abilities}: the container toolkit then mounts no libcuda.so.1",
            hint=f"set {_ABILITIES}=compute,utility in the image or for the container",
        )


def _torch(host: Host, driver: str, every: tuple[Gpu, ...]) -> Iterator[Problem]:
    build = torch_build(host)
    if build.version is None or build.hip is not None:
        return
    if build.cuda is None:
        yield Problem(
            kind="torch-without-cuda",
            text=f"this host has {_named(every)}, and torch {build.version} is built without CUDA",
            hint="install a build of torch for CUDA (its version ends in +cu128, say): this one runs on the CPU",
        )
        return
    oldest = OLDEST_DRIVERS.get(build.cuda.partition(".")[0])
    if oldest and (reason := check_driver(oldest, Environment(node=NodeFacts(driver=driver)))):
        yield Problem(
            kind="driver-too-old",
            text=f"torch {build.version} is built for CUDA {build.cuda}, which {reason.text}",
            hint="update the node's driver, or install a torch for an older CUDA; cards for data centers can also run "
            "with NVIDIA's package cuda-compat in the container",
        )


def _choice(host: Host, every: tuple[Gpu, ...]) -> Iterator[Problem]:
    setting = host.variables.get(_CHOICE)
    visible = every if setting is None else observe_nvidia(host)[1] or ()
    if len(visible) < len(every):
        yield Problem(
            kind="hidden-cards",
            text=f"{_CHOICE} is {setting!r}: programs see {len(visible)} of {len(every)} card(s)",
            hint=f"right for a worker of one card among several; else unset {_CHOICE}",
        )
    if len({(gpu.capability, gpu.sku, gpu.mig) for gpu in visible}) > 1:
        yield Problem(
            kind="different-cards",
            text=f"this host has different cards: {_named(visible)}; a program takes the one that is cuda:0",
            hint=f"give every worker and every pod one of them: {_CHOICE}=GPU-<uuid> (nvidia-smi -L lists them)",
        )


def _named(cards: tuple[Gpu, ...]) -> str:
    names = [f"{gpu.sku} MIG {gpu.mig}" if gpu.mig else gpu.sku for gpu in cards]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
