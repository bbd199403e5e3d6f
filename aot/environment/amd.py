"""AMD cards and their driver, from the files of the amdgpu kernel module: no ROCm library is loaded.

Sources: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the files below /sys/class/kfd/kfd/topology/nodes; a node
whose `simd_count` is 0 is a CPU), include/uapi/linux/kfd_sysfs.h (heap types: 1 and 2 are the frame buffer, public and
private) and amdgpu_fru_eeprom.c (`product_name`, of boards that store one). gfx_target_version is
major * 10000 + minor * 100 + step, the last two being hexadecimal digits of the processor's name. Whether xnack and
sramecc are on is not read, so code that fixes one of them is not accepted.
"""

from aot.environment.host import Host
from aot.schema.capability import Capability
from aot.schema.environment import Gpu

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_RENDER = "/sys/class/drm/renderD"
_FRAME_BUFFERS = (1, 2)


def observe_amd(host: Host) -> tuple[str | None, tuple[Gpu, ...]]:
    """Return the version of an amdgpu module that is not the kernel's own, and the cards that compute."""
    version = (host.text("/sys/module/amdgpu/version") or "").strip() or None
    cards = (_card(host, f"{_NODES}/{number}") for number in sorted(_numbers(host, _NODES)))
    return version, tuple(card for card in cards if card is not None)


def _card(host: Host, node: str) -> Gpu | None:
    facts = _properties(host, f"{node}/properties")
    version, simds = facts.get("gfx_target_version", 0), facts.get("simd_count", 0)
    if not version or not simds:
        return None
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    if major > 99 or minor > 15 or step > 15:
        return None  # no processor's name is spelled so
    processor = f"gfx{major}{minor:x}{step:x}"
    per_unit = facts.get("simd_per_cu", 0)
    return Gpu(
        capability=Capability.parse(f"rocm:{processor}"),
        sku=_name(host, node, facts) or processor,
        memory_bytes=_memory_bytes(host, f"{node}/mem_banks"),
        sm_count=simds // per_unit if per_unit else None,
    )


def _name(host: Host, node: str, facts: dict[str, int]) -> str | None:
    product = host.text(f"{_RENDER}{facts.get('drm_render_minor', -1)}/device/product_name") or ""
    return product.strip() or (host.text(f"{node}/name") or "").strip() or None


def _memory_bytes(host: Host, banks: str) -> int:
    found = (_properties(host, f"{banks}/{number}/properties") for number in _numbers(host, banks))
    return sum(bank.get("size_in_bytes", 0) for bank in found if bank.get("heap_type") in _FRAME_BUFFERS)


def _numbers(host: Host, directory: str) -> list[int]:
    try:
        return [int(entry.name) for entry in host.path(directory).iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


def _properties(host: Host, path: str) -> dict[str, int]:
    """Return lines of "name number" as a dictionary."""
    pairs = (line.split() for line in (host.text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
