"""Cards and CPUs by name: what is known of each product, so that a host can be described instead of visited.

`name` of a card is the driver's own (NVML, or ROCm's device name), `gigabytes` what its maker states. Where the
driver's figure is not known, memory is that many times 10^9 bytes, which is less than the card has. A fact without a
source is None.

Sources by short name:

* README: NVIDIA open-gpu-kernel-modules, README, table of compatible GPUs (the driver's product names).
* CC: NVIDIA, "CUDA GPU Compute Capability" (capability by product).
* GA100, GH100, GA102, AD102, GB202, TU104: NVIDIA's architecture papers (multiprocessors, memory).
* TORCH: torch.cuda.get_device_properties as printed in public reports (name, memory_bytes, multi_processor_count).
* NVML: nvmlDeviceGetMemoryInfo as observed.
* LLVM: User Guide for the AMDGPU Backend, table of processors. AMD: AMD's product pages.
* GCC: GCC manual, `-march` and `-mcpu` of that name, which lists what the CPU has. ARM: the core's technical reference.
"""

from dataclasses import dataclass

from aot.schema.capability import Capability
from aot.schema.names import Name
from aot.schema.profile import Device, Profile, Toolchain, device_profile_name
from aot.schema.targets import level_features

_MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    capability: Capability
    name: str
    source: str
    gigabytes: int
    multiprocessors: int | None = None  # compute units on AMD
    reported_bytes: int | None = None  # by the driver, or by torch, which takes off what it cannot use

    @property
    def memory_bytes(self) -> int:
        return self.reported_bytes or self.gigabytes * 10**9


@dataclass(frozen=True)
class Cpu:
    capability: Capability
    source: str
    sve_bits: int | None = None

    @property
    def machine(self) -> str:
        return "x86_64" if self.capability.target.startswith("x86") else "aarch64"

    @property
    def features(self) -> tuple[str, ...]:
        """Every feature that the catalogue knows of it, as /proc/cpuinfo spells them, sorted."""
        level = level_features(self.capability.level) or frozenset()
        return tuple(sorted(level | self.capability.features))


def _card(
    target: str, name: str, source: str, gigabytes: int, units: int | None = None, *, reported: int | None = None
) -> Card:
    return Card(Capability.parse(target), name, source, gigabytes, units, reported)


CARDS: dict[str, Card] = {
    "t4": _card("cuda:sm_75", "Tesla T4", "README; CC; TU104: 40", 16, 40),
    "a100-sxm4-40gb": _card("cuda:sm_80", "NVIDIA A100-SXM4-40GB", "README; CC; GA100: 108", 40, 108),
    "a100-sxm4-80gb": _card("cuda:sm_80", "NVIDIA A100-SXM4-80GB", "README; CC; GA100: 108", 80, 108),
    "a100-pcie-40gb": _card("cuda:sm_80", "NVIDIA A100-PCIE-40GB", "README; CC; GA100: 108", 40, 108),
    "a100-pcie-80gb": _card("cuda:sm_80", "NVIDIA A100 80GB PCIe", "README; CC; GA100: 108", 80, 108),
    "a10": _card("cuda:sm_86", "NVIDIA A10", "README; CC", 24),
    "a10g": _card("cuda:sm_86", "NVIDIA A10G", "README; TORCH: 80", 24, 80, reported=22587 * _MIB),
    "rtx-3090": _card("cuda:sm_86", "NVIDIA GeForce RTX 3090", "README; CC; GA102: 82", 24, 82),
    "l4": _card("cuda:sm_89", "NVIDIA L4", "README; CC", 24),
    "l40s": _card("cuda:sm_89", "NVIDIA L40S", "README; CC; TORCH: 142", 48, 142, reported=45589 * _MIB),
    "rtx-4090": _card(
        "cuda:sm_89", "NVIDIA GeForce RTX 4090", "README; CC; AD102; TORCH: 128", 24, 128, reported=24563 * _MIB
    ),
    "h100-sxm": _card(
        "cuda:sm_90", "NVIDIA H100 80GB HBM3", "README; CC; GH100: 132; NVML", 80, 132, reported=85520809984
    ),
    "h100-pcie": _card("cuda:sm_90", "NVIDIA H100 PCIe", "README; CC; GH100: 114", 80, 114),
    "h100-nvl": _card("cuda:sm_90", "NVIDIA H100 NVL", "README; CC", 94),
    "h200": _card("cuda:sm_90", "NVIDIA H200", "README; CC; TORCH: 132", 141, 132, reported=143156 * _MIB),
    "gh200-96gb": _card("cuda:sm_90", "NVIDIA GH200 480GB", "README (480GB is the host's memory); CC", 96),
    "b200": _card("cuda:sm_100", "NVIDIA B200", "CC; TORCH: 148", 180, 148, reported=182631 * _MIB),
    "gb200": _card("cuda:sm_100", "NVIDIA GB200", "CC", 186),
    "rtx-5090": _card("cuda:sm_120", "NVIDIA GeForce RTX 5090", "CC; GB202: 170", 32, 170),
    "rtx-pro-6000": _card(
        "cuda:sm_120",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "CC; TORCH: 188",
        96,
        188,
        reported=97250 * _MIB,
    ),
    "mi250x": _card(
        "rocm:gfx90a:sramecc+:xnack-",
        "AMD Instinct MI250X",
        "LLVM; TORCH: 110, one of its two dies",
        64,
        110,
        reported=65520 * _MIB,
    ),
    "mi300x": _card(
        "rocm:gfx942:sramecc+:xnack-", "AMD Instinct MI300X", "TORCH: 304", 192, 304, reported=196592 * _MIB
    ),
    "mi350x": _card("rocm:gfx950", "AMD Instinct MI350X", "AMD: CDNA 4, 256 compute units", 288, 256),
    "rx-7900-xtx": _card(
        "rocm:gfx1100", "Radeon RX 7900 XTX", "AMD: 96 (torch counts pairs of them)", 24, 96, reported=24560 * _MIB
    ),
}

_ICE_LAKE = (
    "x86-64-v4+avx512_bitalg+avx512_vbmi2+avx512_vnni+avx512_vpopcntdq+avx512ifma+avx512vbmi+gfni+vaes+vpclmulqdq"
)
_SAPPHIRE_RAPIDS = f"{_ICE_LAKE}+amx_bf16+amx_int8+amx_tile+avx512_bf16+avx512_fp16+avx_vnni"
_NEOVERSE_N1 = "armv8.2-a+asimddp+asimdhp+lrcpc"
_NEOVERSE_V1 = "armv8.4-a+asimdfhm+asimdhp+bf16+i8mm+sve"
_NEOVERSE_V2 = "armv9-a+asimdfhm+asimdhp+bf16+i8mm"


def _cpu(target: str, source: str, sve_bits: int | None = None) -> Cpu:
    return Cpu(Capability.parse(f"cpu:{target}"), source, sve_bits)


CPUS: dict[str, Cpu] = {
    "xeon-nehalem": _cpu("x86-64-v2", "GCC nehalem"),
    "xeon-haswell": _cpu("x86-64-v3", "GCC haswell"),
    "xeon-broadwell": _cpu("x86-64-v3", "GCC broadwell"),
    "xeon-skylake": _cpu("x86-64-v4", "GCC skylake-avx512"),
    "xeon-cascade-lake": _cpu("x86-64-v4+avx512_vnni", "GCC cascadelake"),
    "xeon-ice-lake": _cpu(_ICE_LAKE, "GCC icelake-server"),
    "xeon-sapphire-rapids": _cpu(_SAPPHIRE_RAPIDS, "GCC sapphirerapids"),
    "xeon-emerald-rapids": _cpu(_SAPPHIRE_RAPIDS, "GCC emeraldrapids"),
    "core-alder-lake": _cpu("x86-64-v3+avx_vnni+gfni+vaes+vpclmulqdq", "GCC alderlake"),
    "epyc-rome": _cpu("x86-64-v3", "GCC znver2"),
    "epyc-milan": _cpu("x86-64-v3+vaes+vpclmulqdq", "GCC znver3"),
    "epyc-genoa": _cpu(f"{_ICE_LAKE}+avx512_bf16", "GCC znver4"),
    "epyc-turin": _cpu(f"{_ICE_LAKE}+avx512_bf16+avx512_vp2intersect+avx_vnni", "GCC znver5"),
    "neoverse-n1": _cpu(_NEOVERSE_N1, "GCC neoverse-n1; ARM"),
    "neoverse-v1": _cpu(_NEOVERSE_V1, "GCC neoverse-v1; ARM: 256-bit SVE", 256),
    "neoverse-n2": _cpu(_NEOVERSE_V2, "GCC neoverse-n2; ARM: 128-bit SVE", 128),
    "neoverse-v2": _cpu(_NEOVERSE_V2, "GCC neoverse-v2; ARM: 128-bit SVE", 128),
    "altra": _cpu(_NEOVERSE_N1, "Ampere Altra: Neoverse N1"),
    "graviton2": _cpu(_NEOVERSE_N1, "AWS Graviton technical guide: Neoverse N1"),
    "graviton3": _cpu(_NEOVERSE_V1, "AWS Graviton technical guide: Neoverse V1", 256),
    "graviton4": _cpu(_NEOVERSE_V2, "AWS Graviton technical guide: Neoverse V2", 128),
    "grace": _cpu(_NEOVERSE_V2, "NVIDIA Grace performance tuning guide: Neoverse V2", 128),
}


def card_profile(name: str, toolchain: Toolchain) -> Profile | None:
    """Return the profile that a worker with a card of NVIDIA's would be, with `toolchain`; None for an unknown name.

    `name` is the card's in this catalogue, or its profile's. Where the driver's figure of its memory is not known, a
    worker's is another one, and so is its build key.
    """
    for known, card in CARDS.items():
        named = device_profile_name(card.name)
        if card.capability.family == "cuda" and name in (known, named):
            device = Device(sku=card.name, sm_count=card.multiprocessors or 0, memory_bytes=card.memory_bytes)
            return Profile(name=Name(named), capability=card.capability, toolchain=toolchain, device=device)
    return None


def is_of_catalogue(profile: Profile) -> bool:
    """True of a card's profile that is what this catalogue says of the card, and nothing besides."""
    return profile.device is not None and card_profile(profile.name, profile.toolchain) == profile
