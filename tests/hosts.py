"""Hosts for tests: a root directory with the files of /proc, /sys and /etc that one machine would have."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot.environment import Host

_X86_64 = "fpu cx8 cmov mmx fxsr sse sse2 syscall lm constant_tsc"
_V2 = f"{_X86_64} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
_V3 = f"{_V2} fma movbe xsave avx f16c abm bmi1 avx2 bmi2"
_V4 = f"{_V3} avx512f avx512dq avx512cd avx512bw avx512vl"
_ARM8 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_ARM82 = f"{_ARM8} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
_ARM84 = f"{_ARM82} jscvt fcma sm4 sve uscat ilrcpc flagm dit i8mm bf16"

# name -> (machine, model, flags, the level that it has)
CPUS: dict[str, tuple[str, str, str, str | None]] = {
    "kvm64": ("x86_64", "Common KVM processor", _X86_64 + " pni cx16", "cpu:x86-64"),
    "core2": ("x86_64", "Intel(R) Core(TM)2 Duo", _X86_64 + " pni ssse3 cx16 sse4_1 lahf_lm", "cpu:x86-64"),
    "nehalem": ("x86_64", "Intel(R) Xeon(R) X5570", _V2, "cpu:x86-64-v2"),
    "sandy-bridge": ("x86_64", "Intel(R) Xeon(R) E5-2670", _V2 + " xsave avx", "cpu:x86-64-v2"),
    "haswell": ("x86_64", "Intel(R) Xeon(R) E5-2680 v3", _V3, "cpu:x86-64-v3"),
    "no-xsave": ("x86_64", "Haswell, nested VM", _V3.replace(" xsave", ""), "cpu:x86-64-v2"),
    "no-lzcnt": ("x86_64", "Haswell, abm masked", _V3.replace(" abm", ""), "cpu:x86-64-v2"),
    "no-movbe": ("x86_64", "Zen, movbe masked", _V3.replace(" movbe", ""), "cpu:x86-64-v2"),
    "zen2": ("x86_64", "AMD EPYC 7R32", _V3 + " clzero", "cpu:x86-64-v3"),
    "gracemont": ("x86_64", "Intel(R) N100", _V3 + " avx_vnni", "cpu:x86-64-v3"),
    "knights-landing": (
        "x86_64",
        "Intel(R) Xeon Phi(TM) 7250",
        _V3 + " avx512f avx512cd avx512er avx512pf",
        "cpu:x86-64-v3",
    ),
    "skylake": ("x86_64", "Intel(R) Xeon(R) Platinum 8175M", _V4, "cpu:x86-64-v4"),
    "sapphire-rapids": ("x86_64", "Intel(R) Xeon(R) Platinum 8488C", _V4 + " amx_tile", "cpu:x86-64-v4"),
    "zen5": ("x86_64", "AMD EPYC", _V4 + " avx512_vp2intersect", "cpu:x86-64-v4"),
    "no-sse2": ("x86_64", "nothing real", "fpu cmov mmx", None),
    "pi4": ("aarch64", "", _ARM8, "cpu:armv8-a"),
    "altra": ("aarch64", "", _ARM82, "cpu:armv8.2-a"),
    "graviton3": ("aarch64", "", _ARM84, "cpu:armv8.4-a"),
    "graviton4": ("aarch64", "", _ARM84 + " sb flagm2 frint sve2 bti", "cpu:armv9-a"),
    "riscv": ("riscv64", "", "", None),
}


def a_cpuinfo(
    flags: str, *, machine: str = "x86_64", model: str = "Example CPU", processors: int = 2, threads: int = 1
) -> str:
    """The text of /proc/cpuinfo; `threads` hyper-threads share a core."""
    blocks = []
    for number in range(processors):
        if machine == "x86_64":
            core = number % (processors // threads)
            blocks.append(
                f"processor\t: {number}\nmodel name\t: {model}\nphysical id\t: 0\ncore id\t\t: {core}\n"
                f"flags\t\t: {flags}\nbogomips\t: 5192.24\npower management:"
            )
        elif machine == "aarch64":
            blocks.append(
                f"processor\t: {number}\nBogoMIPS\t: 243.75\nFeatures\t: {flags}\n"
                "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40"
            )
        else:
            blocks.append(f"processor\t: {number}\nhart\t\t: {number}\nisa\t\t: rv64imafdc")
    return "\n\n".join(blocks) + "\n\n"


def a_host(
    root: Path,
    *,
    files: Mapping[str, str | bytes] | None = None,
    cpu: str = "haswell",
    processors: int = 2,
    threads: int = 1,
    allowed: str | None = None,
    machine: str | None = None,
    **fields,
) -> Host:
    """A host below `root`: a CPU of the table above, and `files` by their absolute paths. It has no NVIDIA library."""
    of_cpu, model, flags, _ = CPUS[cpu]
    defaults: dict[str, str | bytes] = {
        "/proc/cpuinfo": a_cpuinfo(flags, machine=of_cpu, model=model, processors=processors, threads=threads),
        "/proc/meminfo": "MemTotal:       16384000 kB\nMemFree:         1000000 kB\n",
        "/proc/sys/kernel/osrelease": "6.1.0-example\n",
        "/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed or f'0-{processors - 1}'}\n",
        "/proc/self/environ": "",
    }
    for path, content in (defaults | dict(files or {})).items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = {"packages": (), "nvml": "libnothing-of-this-name.so.1"} | fields
    return Host(root=root, machine=machine or of_cpu, **settings)


def a_loader_cache(entries: Sequence[tuple[str, str]]) -> bytes:
    """/etc/ld.so.cache in glibc's new form: (name, path) of each library, behind an old header as some systems have."""
    texts, positions = b"", []
    start = 48 + 24 * len(entries)
    for name, path in entries:
        positions.append((start + len(texts), start + len(texts) + len(name) + 1))
        texts += f"{name}\0{path}\0".encode()
    header = struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(texts))
    rows = b"".join(struct.pack("<iIIIQ", 0x0303, name, path, 0, 0) for name, path in positions)
    return b"ld.so-1.7.0\0" + bytes(4) + header + rows + texts
