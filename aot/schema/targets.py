"""The catalogue of targets: what torch 2.11 to 2.13 can generate code for, each row with its source.

A target that is well-formed and not in here is *not known*: it covers nothing and nothing covers it (see
`aot.schema.capability`). The order between targets is made of these tables alone.

Sources by short name:

* GUIDE: CUDA programming guide, sections "Binary Compatibility" and "PTX Compatibility" (a cubin runs on the same major
  version with an equal or higher minor one, on desktop parts only, never to or from Tegra; PTX for X.Y compiles for
  every device from X.Y on) and appendix "Compute Capabilities", "Feature Availability" (suffixes `a` and `f`, table
  "Family-Specific Compatibility").
* TORCH: torch.utils.cpp_extension, the list of architectures that a torch of 2.11 to 2.13 names.
* TRITON: triton.backends.nvidia.compiler.sm_arch_from_capability: from 9.0 on Triton emits `sm_XYa` and nothing else.
* PSABI: x86-64 psABI, section "Micro-Architecture Levels", in the spelling of the kernel's cpufeatures.h.
* INDUCTOR: torch/_inductor/cpu_vec_isa.py and cpp_builder.py, the flags that it gives to the C++ compiler.
* GCC: GCC manual, "x86 Options" and "AArch64 Options": what `-march` and its extensions imply.
* HWCAPS: Linux, Documentation/arch/arm64/elf_hwcaps.rst: the spelling of Arm features and what each stands for.
* LLVM: User Guide for the AMDGPU Backend, tables of processors, of generic processors and of target features.
"""

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Sm:
    """One compute capability. `suffixes` are the spellings that exist: "" for all, "f" family, "a" architecture."""

    suffixes: tuple[str, ...]
    source: str
    tegra: bool = False  # cubins neither come from nor go to another version


@dataclass(frozen=True)
class Gfx:
    """One AMD processor, and the target features that its code objects may fix."""

    settings: tuple[str, ...]
    source: str
    generic_of: tuple[str, ...] = ()  # the processors that run a generic code object


@dataclass(frozen=True)
class Feature:
    """A part of an instruction set beyond the levels, by its name in /proc/cpuinfo."""

    above: str  # the lowest level that this catalogue knows it on
    source: str
    needs: tuple[str, ...] = ()


SMS: dict[int, Sm] = {
    75: Sm(("",), "GUIDE; TORCH 7.5"),
    80: Sm(("",), "GUIDE; TORCH 8.0"),
    86: Sm(("",), "GUIDE; TORCH 8.6"),
    87: Sm(("",), "GUIDE, note on Tegra; TORCH 8.7 (Ampere+Tegra)", tegra=True),
    89: Sm(("",), "GUIDE; TORCH 8.9"),
    90: Sm(("", "a"), "GUIDE; TORCH 9.0, 9.0a; TRITON"),
    100: Sm(("", "f", "a"), "GUIDE, table of families: 10.0 and 10.3; TORCH 10.0, 10.0a; TRITON"),
    103: Sm(("", "f", "a"), "GUIDE, table of families: 10.3; TORCH 10.3, 10.3a; TRITON"),
    110: Sm(("", "f", "a"), "GUIDE, table of families: 11.0; TORCH 11.0, 11.0a (Blackwell+Tegra); TRITON", tegra=True),
    120: Sm(("", "f", "a"), "GUIDE, table of families: 12.0 and 12.1; TORCH 12.0, 12.0a; TRITON"),
    121: Sm(("", "f", "a"), "GUIDE, table of families: 12.1; TORCH 12.1, 12.1a; TRITON"),
}

GFXS: dict[str, Gfx] = {
    "gfx90a": Gfx(("sramecc", "xnack"), "LLVM: MI210, MI250, MI250X; torch._inductor.config.rocm"),
    "gfx942": Gfx(("sramecc", "xnack"), "LLVM; torch._inductor.config.rocm"),
    "gfx950": Gfx(("sramecc", "xnack"), "LLVM; torch._inductor.config.rocm"),
    "gfx1100": Gfx((), "LLVM: no xnack and no sramecc"),
    "gfx9-4-generic": Gfx(("sramecc", "xnack"), "LLVM, generic processors", generic_of=("gfx942", "gfx950")),
    "gfx11-generic": Gfx((), "LLVM, generic processors", generic_of=("gfx1100",)),
}

# Each level contains the ones before it.
X86_LEVELS: dict[str, frozenset[str]] = {
    "x86-64": frozenset(("cmov", "cx8", "fpu", "fxsr", "lm", "mmx", "sse", "sse2", "syscall")),
    "x86-64-v2": frozenset(("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")),
    "x86-64-v3": frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")),
    "x86-64-v4": frozenset(("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")),
}

X86_FEATURES: dict[str, Feature] = {
    "avx_vnni": Feature("x86-64-v3", "GCC -mavxvnni (alderlake)"),
    "gfni": Feature("x86-64-v3", "GCC -mgfni (icelake-server, alderlake)"),
    "vaes": Feature("x86-64-v3", "GCC -mvaes (znver3, icelake-server)"),
    "vpclmulqdq": Feature("x86-64-v3", "GCC -mvpclmulqdq (znver3, icelake-server)"),
    "avx512ifma": Feature("x86-64-v4", "GCC -mavx512ifma (icelake-server)"),
    "avx512vbmi": Feature("x86-64-v4", "GCC -mavx512vbmi (icelake-server)"),
    "avx512_vbmi2": Feature("x86-64-v4", "GCC -mavx512vbmi2 (icelake-server)"),
    "avx512_bitalg": Feature("x86-64-v4", "GCC -mavx512bitalg (icelake-server)"),
    "avx512_vpopcntdq": Feature("x86-64-v4", "GCC -mavx512vpopcntdq (icelake-server)"),
    "avx512_vnni": Feature("x86-64-v4", "INDUCTOR VecAVX512VNNI; GCC -mavx512vnni (cascadelake)"),
    "avx512_bf16": Feature("x86-64-v4", "INDUCTOR VecAVX512, where the CPU has it; GCC -mavx512bf16 (cooperlake)"),
    "avx512_fp16": Feature("x86-64-v4", "GCC -mavx512fp16 (sapphirerapids)"),
    "avx512_vp2intersect": Feature("x86-64-v4", "GCC -mavx512vp2intersect (tigerlake)"),
    "amx_tile": Feature("x86-64-v4", "INDUCTOR VecAMX, with the flags of VecAVX512VNNI"),
    "amx_bf16": Feature("x86-64-v4", "INDUCTOR VecAMX", ("amx_tile",)),
    "amx_int8": Feature("x86-64-v4", "INDUCTOR VecAMX", ("amx_tile",)),
    "amx_fp16": Feature("x86-64-v4", "INDUCTOR VecAMX, where the CPU has it; GCC -mamx-fp16", ("amx_tile",)),
}

# What a compiler may use at each version (HWCAPS); each contains the ones before it, except that armv9-a stands on
# armv8.5-a (GCC: armv9-a is armv8.5-a with SVE and SVE2).
ARM_LEVELS: dict[str, frozenset[str]] = {
    "armv8-a": frozenset(("asimd", "fp")),
    "armv8.1-a": frozenset(("asimdrdm", "atomics", "crc32")),
    "armv8.2-a": frozenset(("dcpop",)),
    "armv8.3-a": frozenset(("fcma", "jscvt", "lrcpc")),
    "armv8.4-a": frozenset(("asimddp", "dit", "flagm", "ilrcpc", "uscat")),
    "armv8.5-a": frozenset(("flagm2", "frint", "sb")),
    "armv8.6-a": frozenset(("bf16", "i8mm")),
    "armv9-a": frozenset(("sve", "sve2")),
}
ARM_BASE = {"armv9-a": "armv8.5-a"}

# A `sve_vl` feature is a fixed vector length: its code is right on exactly that one, and a CPU runs with one.
SVE_WIDTHS = (128, 256, 512)
ARM_FEATURES: dict[str, Feature] = {
    "asimddp": Feature("armv8-a", "GCC +dotprod (neoverse-n1); HWCAPS"),
    "asimdhp": Feature("armv8-a", "GCC +fp16 (neoverse-n1); HWCAPS"),
    "asimdfhm": Feature("armv8-a", "INDUCTOR VecSVE +fp16fml; HWCAPS", ("asimdhp",)),
    "bf16": Feature("armv8-a", "INDUCTOR VecSVE +bf16; HWCAPS"),
    "i8mm": Feature("armv8-a", "INDUCTOR VecSVE +i8mm; HWCAPS"),
    "lrcpc": Feature("armv8-a", "GCC +rcpc (neoverse-n1); HWCAPS"),
    "sha3": Feature("armv8-a", "INDUCTOR VecSVE +sha3; HWCAPS"),
    "sve": Feature("armv8-a", "INDUCTOR VecSVE -march=armv8-a+sve+bf16; HWCAPS"),
    "sve2": Feature("armv8-a", "INDUCTOR VecSVE +sve2; HWCAPS", ("sve",)),
    **{
        f"sve_vl{bits}": Feature("armv8-a", "GCC -msve-vector-bits; INDUCTOR VecSVE (128 and 256)", ("sve",))
        for bits in SVE_WIDTHS
    },
}


@lru_cache(maxsize=64)
def level_features(level: str) -> frozenset[str] | None:
    """Return every feature that a level stands for; None for a level that is not in the tables."""
    for levels in (X86_LEVELS, ARM_LEVELS):
        if level not in levels:
            continue
        names = list(levels)
        below = ARM_BASE.get(level) or (names[names.index(level) - 1] if names.index(level) else None)
        return levels[level] | ((level_features(below) or frozenset()) if below else frozenset())
    return None
