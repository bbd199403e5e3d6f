"""The rules behind `aot.select`: one small pure function for each kind of host guard.

A rule takes the guard's value and the environment, and returns None when the guard holds, else the Reason. A Reason
whose `found` is None means that the fact was not observed. Each rule is declared *monotone* (more of it is fine),
*exact* (only the same will do) or *advisory* (a mismatch runs, but was tuned elsewhere).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from aot.errors import InvalidCapability
from aot.schema.capability import Capability
from aot.schema.decision import Reason
from aot.schema.environment import Environment


class Order(StrEnum):
    MONOTONE = "monotone"
    EXACT = "exact"
    ADVISORY = "advisory"


Check = Callable[[str, Environment], Reason | None]


@dataclass(frozen=True)
class Rule:
    kind: str
    order: Order
    check: Check


def check_machine(value: str, environment: Environment) -> Reason | None:
    """Exact: an ELF file runs on the instruction set that its header names and on no other."""
    return _same("machine", value, environment.node.machine, "the artifact is built for {wanted}, this host is {found}")


def check_capability(value: str, environment: Environment) -> Reason | None:
    """Monotone along `Capability.covers`: each x86-64 level contains the one before it; a cubin runs on its own
    major version with an equal or higher minor one."""
    try:
        wanted = Capability.parse(value)
    except InvalidCapability:
        return Reason(kind="capability", wanted=value, found="unknown", text=f"capability {value} is not known here")
    if wanted.family == "cpu":
        return _covered(wanted, None if environment.node.cpu is None else (environment.node.cpu,))
    gpus = environment.node.gpus
    return _covered(wanted, None if gpus is None else tuple(gpu.capability for gpu in gpus))


def check_torch(value: str, environment: Environment) -> Reason | None:
    """Exact, local part included: the shim that a package calls is stable in name only, and `+cpu` and `+cu130`
    are different libraries. (pytorch#123745: an unresolved symbol one release later.)"""
    return _same("torch", value, environment.container.torch, "the artifact is proven with torch {wanted}, not {found}")


def check_python(value: str, environment: Environment) -> Reason | None:
    """Exact on major.minor: asked by routes that store bytecode or pickles, and by artifacts of a module's source,
    since the fingerprint that a live module is compared with is made of its classes' bytecode."""
    found = environment.container.python
    short = None if found is None else ".".join(found.split(".")[:2])
    return _same("python", value, short, "the artifact is tied to Python {wanted} bytecode, this is Python {found}")


def check_triton(value: str, environment: Environment) -> Reason | None:
    """Exact: Triton's own cache key contains its version."""
    return _same("triton", value, environment.container.triton, "the artifact needs triton {wanted}, not {found}")


def check_threads(value: str, environment: Environment) -> Reason | None:
    """Exact: present only where the profile pinned the number of threads into the generated loops."""
    found = environment.container.threads
    text = "the generated code is fixed to {wanted} threads, this process uses {found}"
    return _same("threads", value, None if found is None else str(found), text)


def check_isa(value: str, environment: Environment) -> Reason | None:
    """Exact, for cache entries: loop steps are baked into source that is compiled again at load, and read on
    another vector width they give wrong numbers or corrupt the heap."""
    found = None if environment.node.cpu is None else environment.node.cpu.target
    return _same("isa", value, found, "the cache entries are made for {wanted}, this host is {found}")


def check_libc(value: str, environment: Environment) -> Reason | None:
    """Monotone: glibc keeps every symbol version that it ever had, so a newer one serves older programs."""
    return _floor(
        "libc", value, environment.container.libc, "needs glibc {wanted} or newer, this container has {found}"
    )


def check_libstdcxx(value: str, environment: Environment) -> Reason | None:
    """Monotone, as for glibc: libstdc++.so.6 only adds GLIBCXX_ versions."""
    found = environment.container.libstdcxx
    return _floor("libstdcxx", value, found, "needs GLIBCXX_{wanted} or newer, this container defines up to {found}")


def check_driver(value: str, environment: Environment) -> Reason | None:
    """Monotone: a newer NVIDIA driver runs what an older one did (CUDA compatibility guide)."""
    return _floor("driver", value, environment.node.driver, "needs NVIDIA driver {wanted} or newer, this is {found}")


def check_cuda(value: str, environment: Environment) -> Reason | None:
    """Same major version, equal or higher minor: CUDA's minor-version compatibility."""
    found = environment.container.cuda
    if found is not None and found.split(".")[0] != value.split(".")[0]:
        return Reason(kind="cuda", wanted=value, found=found, text=f"built for CUDA {value}, this is CUDA {found}")
    return _floor("cuda", value, found, "needs CUDA {wanted} or newer, this is {found}")


def check_memory(value: str, environment: Environment) -> Reason | None:
    """Monotone, over the largest card: bytes that the proof saw in use."""
    gpus = environment.node.gpus
    found = None if gpus is None else max((gpu.memory_bytes for gpu in gpus), default=0)
    text = "needs {wanted} bytes of device memory, the largest card has {found}"
    return _floor("memory", value, None if found is None else str(found), text)


def check_sku(value: str, environment: Environment) -> Reason | None:
    """Advisory: same sm on another SKU runs, but block sizes were chosen on another number of multiprocessors."""
    gpus = environment.node.gpus
    if gpus is None:
        return _missing("sku", value)
    skus = sorted({gpu.sku for gpu in gpus})
    if value in skus:
        return None
    found = ", ".join(skus) or "no card"
    return Reason(kind="sku", wanted=value, found=found, text=f"tuned on {value}, this host has {found}")


RULES: dict[str, Rule] = {
    rule.kind: rule
    for rule in (
        Rule("machine", Order.EXACT, check_machine),
        Rule("capability", Order.MONOTONE, check_capability),
        Rule("torch", Order.EXACT, check_torch),
        Rule("python", Order.EXACT, check_python),
        Rule("triton", Order.EXACT, check_triton),
        Rule("threads", Order.EXACT, check_threads),
        Rule("isa", Order.EXACT, check_isa),
        Rule("libc", Order.MONOTONE, check_libc),
        Rule("libstdcxx", Order.MONOTONE, check_libstdcxx),
        Rule("driver", Order.MONOTONE, check_driver),
        Rule("cuda", Order.MONOTONE, check_cuda),
        Rule("memory", Order.MONOTONE, check_memory),
        Rule("sku", Order.ADVISORY, check_sku),
    )
}


def _covered(wanted: Capability, found: tuple[Capability, ...] | None) -> Reason | None:
    if found is None:
        return _missing("capability", wanted)
    if any(have.covers(wanted) for have in found):
        return None
    have = ", ".join(sorted(set(found))) or f"no {wanted.family} device"
    return Reason(kind="capability", wanted=wanted, found=have, text=f"generated for {wanted}, this host has {have}")


def _same(kind: str, wanted: str, found: str | None, text: str) -> Reason | None:
    if found is None:
        return _missing(kind, wanted)
    if found == wanted:
        return None
    return Reason(kind=kind, wanted=wanted, found=found, text=text.format(wanted=wanted, found=found))


def _floor(kind: str, wanted: str, found: str | None, text: str) -> Reason | None:
    if found is None:
        return _missing(kind, wanted)
    have, floor = _version(found), _version(wanted)
    if have is None or floor is None:
        return Reason(kind=kind, wanted=wanted, found=found, text=f"{kind} {found} cannot be compared with {wanted}")
    width = max(len(have), len(floor))
    if have + (0,) * (width - len(have)) >= floor + (0,) * (width - len(floor)):
        return None
    return Reason(kind=kind, wanted=wanted, found=found, text=text.format(wanted=wanted, found=found))


def _missing(kind: str, wanted: str) -> Reason:
    return Reason(kind=kind, wanted=wanted, found=None, text=f"{kind} of this host is not known, {wanted} is needed")


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None
