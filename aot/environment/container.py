"""Container facts: what holds only where this process runs."""

import os
import sys

from aot.environment.cpu import Cpus, allowed_processors, usable_cores
from aot.environment.host import Host
from aot.environment.libraries import libstdcxx_version
from aot.environment.packages import loaded_torch_threads, torch_build, triton_version
from aot.schema.environment import ContainerFacts


def observe_container(host: Host | None = None) -> ContainerFacts:
    """Return versions of torch, Triton, CUDA, ROCm, Python, libc and libstdc++, and the threads and cores to be had."""
    host = host or Host()
    torch = torch_build(host)
    return ContainerFacts(
        torch=torch.version,
        triton=triton_version(host),
        cuda=torch.cuda,
        hip=torch.hip,
        cxx11_abi=torch.cxx11_abi,
        python=".".join(map(str, sys.version_info[:3])),
        libc=libc_version(host),
        libstdcxx=libstdcxx_version(host),
        threads=torch_threads(host),
        cores=usable_cores(host),
    )


def libc_version(host: Host) -> str | None:
    """Return the release of the glibc that this process runs on ("2.36"), or "musl"; None on another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        text = ""
    if not text:
        # Where its loader lies: musl, "Guidelines for distributions"; glibc names itself by the call above.
        return "musl" if any(host.path("/lib").glob("ld-musl-*.so.1")) else None
    return text.removeprefix("glibc ") or None


def torch_threads(host: Host) -> int | None:
    """Return the number of threads that torch uses for one operation.

    A loaded torch is asked. Else it is worked out as torch does at start (aten/src/ATen/ParallelCommon.cpp and
    ParallelOpenMP.cpp): MKL_NUM_THREADS before OMP_NUM_THREADS; on x86 MKL then lowers it to the number of cores
    unless MKL_DYNAMIC is off, and counts cores, not hyper-threads, by default. cgroup quotas are not looked at.
    """
    if (loaded := loaded_torch_threads(host)) is not None:
        return loaded
    allowed = allowed_processors(host)
    if not allowed:
        return None
    wanted = _setting(host, "MKL_NUM_THREADS") or _setting(host, "OMP_NUM_THREADS")
    if host.machine != "x86_64":
        return wanted or len(allowed)
    cores = Cpus.read(host).physical_cores(allowed) or len(allowed)
    if wanted is None:
        return cores
    dynamic = host.variables.get("MKL_DYNAMIC", "").lower() not in ("false", "0", "no", "off")
    return min(wanted, cores) if dynamic else wanted


def _setting(host: Host, name: str) -> int | None:
    """Return the first number of OMP_NUM_THREADS and its like ("4" and "4,2" are 4); None for anything else."""
    text = host.variables.get(name, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None
