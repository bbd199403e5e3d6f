"""Node facts: what holds for every container on the host."""

from aot.environment.amd import observe_amd
from aot.environment.cgroup import memory_limit_bytes
from aot.environment.cpu import Cpus, sve_bits
from aot.environment.host import Host
from aot.environment.nvidia import observe_nvidia
from aot.schema.environment import NodeFacts


def observe_node(host: Host | None = None) -> NodeFacts:
    """Return CPU, memory (with this container's limit, where there is one), kernel, drivers and cards."""
    host = host or Host()
    cpus = Cpus.read(host)
    driver, gpus = observe_nvidia(host)
    amd_driver, amd_gpus = observe_amd(host)
    return NodeFacts(
        machine=host.machine,
        cpu=cpus.capability,
        cpu_model=cpus.model,
        cpu_features=cpus.features,
        memory_bytes=min(filter(None, (memory_limit_bytes(host), installed_bytes(host))), default=None),
        kernel=(host.text("/proc/sys/kernel/osrelease") or "").strip() or None,
        sve_bits=sve_bits(host),
        driver=driver,
        amd_driver=amd_driver,
        # Where NVIDIA's cards could not be asked for, the list would not be whole.
        gpus=None if gpus is None else (*gpus, *amd_gpus),
    )


def installed_bytes(host: Host) -> int | None:
    """Return the memory of the host; None where it does not say."""
    for line in (host.text("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[:1] and value.split()[0].isdecimal():
            return int(value.split()[0]) * 1024
    return None
