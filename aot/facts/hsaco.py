"""AMD code objects (hsaco): the architecture, and the kernels with what they take of a compute unit.

Source: LLVM, "User Guide for AMDGPU Backend": ELF header (EF_AMDGPU_MACH, EF_AMDGPU_FEATURE_*_V4) and metadata
of code objects V4 to V6 (note NT_AMDGPU_METADATA of the owner "AMDGPU", MessagePack: amdhsa.target, amdhsa.kernels).
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot.facts.elf import EM_AMDGPU, SHT_DYNSYM, SHT_NOTE, STT_FUNC, Elf
from aot.facts.image import open_image
from aot.schema.capability import Capability

KERNELS = 65_536  # the most that are read

_MACHINES = {0x3F: "gfx90a", 0x41: "gfx1100", 0x4C: "gfx942", 0x4F: "gfx950"}
_ABI_VERSIONS = (2, 3, 4)  # code objects V4 to V6, whose flags spell the two settings alike
_SETTINGS = ("", "", "-", "+")  # not supported, any, off, on
_NT_AMDGPU_METADATA = 32
_NOTE = struct.Struct("<III")


@dataclass(frozen=True, kw_only=True)
class AmdKernel:
    """`shared_bytes` (LDS) is of a workgroup, `stack_bytes` (scratch) of a work item; what spilled lies in scratch."""

    name: str
    size_bytes: int
    vector_registers: int
    scalar_registers: int
    shared_bytes: int
    stack_bytes: int
    spilled_registers: int


@dataclass(frozen=True, kw_only=True)
class HsacoFacts:
    """`kernels` are sorted by name."""

    capability: Capability
    wavefront: int | None
    kernels: tuple[AmdKernel, ...]


def read_hsaco(path: Path) -> HsacoFacts:
    """Return the facts of the code object at `path`. Raises MalformedDocument for anything else, and OSError."""
    with open_image(path) as image:
        elf = Elf(image)
        if elf.machine != EM_AMDGPU:
            raise image.malformed(f"machine {elf.machine} is not AMDGPU ({EM_AMDGPU})")
        elf.check_whole()
        target = _target(elf)
        listed = _listed(elf, target)
        sizes = _sizes(elf)
        try:
            kernels = [_kernel(one, sizes) for one in listed]
        except (KeyError, TypeError, ValueError) as error:
            raise image.malformed(f"a kernel of its metadata lacks {error}") from None
        wavefronts = {one.get(".wavefront_size") for one in listed}
        return HsacoFacts(
            capability=Capability.parse(f"rocm:{target}"),
            wavefront=wavefronts.pop() if len(wavefronts) == 1 else None,
            kernels=tuple(sorted(kernels, key=lambda kernel: kernel.name)),
        )


def _target(elf: Elf) -> str:
    """Return the processor and the settings that the code insists on: "gfx942", "gfx90a:sramecc+:xnack-"."""
    processor = _MACHINES.get(elf.flags & 0xFF)
    if processor is None:
        raise elf.image.malformed(f"its flags {elf.flags:#x} name no known architecture")
    if elf.abi_version not in _ABI_VERSIONS:
        raise elf.image.malformed(f"code object ABI version {elf.abi_version} is not known, wanted 2 to 4")
    settings = (f":{name}{_SETTINGS[elf.flags >> shift & 3]}" for name, shift in (("sramecc", 10), ("xnack", 8)))
    return processor + "".join(setting for setting in settings if setting[-1] in "+-")


def _listed(elf: Elf, target: str) -> list[dict[str, Any]]:
    """Return the kernels of the metadata, which must be of the architecture that the flags name."""
    for section in elf.sections:
        if section.kind != SHT_NOTE:
            continue
        content = elf.content_of(section)
        offset = 0
        while offset + _NOTE.size <= len(content):
            name_bytes, size, kind = _NOTE.unpack_from(content, offset)
            start = offset + _NOTE.size + _aligned(name_bytes)
            owner = content[offset + _NOTE.size : offset + _NOTE.size + name_bytes].rstrip(b"\0")
            if kind == _NT_AMDGPU_METADATA and owner == b"AMDGPU":
                return _decode(elf, content[start : start + size], target)
            offset = start + _aligned(size)
    raise elf.image.malformed("it has no metadata of its kernels")


def _decode(elf: Elf, content: bytes, target: str) -> list[dict[str, Any]]:
    try:
        metadata = msgspec.msgpack.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise elf.image.malformed(f"its metadata does not decode: {error}") from None
    said = str(metadata.get("amdhsa.target", "")).split("-", 4)[-1]  # after the four parts of the triple
    if said != target:
        raise elf.image.malformed(f"its flags say {target}, its metadata says {said[:40] or 'nothing'}")
    kernels = metadata.get("amdhsa.kernels", [])
    if not isinstance(kernels, list) or not all(isinstance(one, dict) for one in kernels):
        raise elf.image.malformed("its metadata lists no kernels")
    elf.image.check_count(len(kernels), limit=KERNELS, what="kernels")
    return kernels


def _kernel(one: dict[str, Any], sizes: dict[str, int]) -> AmdKernel:
    name = str(one[".name"])
    return AmdKernel(
        name=name,
        size_bytes=sizes.get(name, 0),
        vector_registers=int(one[".vgpr_count"]),
        scalar_registers=int(one[".sgpr_count"]),
        shared_bytes=int(one[".group_segment_fixed_size"]),
        stack_bytes=int(one[".private_segment_fixed_size"]),
        spilled_registers=int(one.get(".vgpr_spill_count", 0)) + int(one.get(".sgpr_spill_count", 0)),
    )


def _sizes(elf: Elf) -> dict[str, int]:
    found = elf.table_of(SHT_DYNSYM)
    if found is None:
        return {}
    table, names = found
    end = names.offset + names.size_bytes
    return {
        elf.image.text_at(symbol.name_offset, end=end): symbol.size_bytes
        for symbol in elf.symbols(table, names=names)
        if symbol.kind == STT_FUNC
    }


def _aligned(size: int) -> int:
    return (size + 3) & ~3
