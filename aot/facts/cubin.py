"""What a cubin was compiled for, and the kernels in it. A cubin is an ELF file of machine EM_CUDA.

Where the architecture stands depends on the byte EI_ABIVERSION (llvm/BinaryFormat/ELF.h, EF_CUDA_*; checked against
ptxas 12.4, 12.8 and 13.0):

| ABI version | architecture | written by CUDA                      | "architecture-specific" (suffix a)      |
|-------------|--------------|--------------------------------------|-----------------------------------------|
| 7           | bits 0-7     | 12, for sm_90 and older              | flag 0x800                              |
| 8           | bits 8-15    | 12.8 for sm_100 and newer, 13 always | flag 0x8; in 13 attribute 9, .nv.compat |

The suffix f ("family") is in no flag: only the command line that ptxas keeps in .note.nv.tkinfo tells it.

What a kernel takes of a multiprocessor stands in sections and in the attributes of .nv.info (format byte, attribute
byte, two bytes of value or length; numbers and names as `cuobjdump -elf` of CUDA 12.4 to 13 prints them, compared with
`cuobjdump --dump-resource-usage`): EIATTR_REGCOUNT 0x2f and EIATTR_FRAME_SIZE 0x11 hold a symbol's index and a number;
.text.<kernel> is the code; .nv.shared.<kernel> is as large as the shared memory that the kernel itself reserves.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.errors import InvalidCapability
from aot.facts.elf import EM_CUDA, SHT_SYMTAB, Elf
from aot.facts.image import Image, open_image
from aot.schema.capability import Capability

KERNELS = 65_536  # the most that are read

_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10
_COMPAT_ARCH_SPECIFIC = 9
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_SVAL = 4  # the format of an attribute with a length
_OF_FUNCTION = struct.Struct("<II")  # symbol index, number
_TOOL_ARCH = re.compile(rb"-arch[ =]+sm_(\d+)([af]?)(?![0-9a-z])")
_TOOL_RELEASE = re.compile(rb"Cuda compilation tools, release [0-9.]+, V([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """What one kernel takes. `stack_bytes`: of local memory, a thread; `shared_bytes`: reserved by itself, a block."""

    name: str
    size_bytes: int
    registers: int | None
    shared_bytes: int
    stack_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CubinFacts:
    """`kernels` are the mangled names of the entry points, sorted. `tool` is the release of ptxas, where it is kept.

    `usages` are in the order of `kernels`.
    """

    capability: Capability
    kernels: tuple[str, ...]
    abi_version: int
    tool: str | None = None
    usages: tuple[KernelUsage, ...] = ()

    @property
    def sm(self) -> str:
        """The architecture as compilers spell it: "sm_90a"."""
        return self.capability.target


def read_cubin(path: Path) -> CubinFacts:
    """Return the facts of the cubin at `path`. Raises MalformedDocument for anything else, and OSError."""
    with open_image(path) as image:
        return facts_of_cubin(image)


def facts_of_cubin(image: Image) -> CubinFacts:
    """The same of bytes that lie in another file, too. Raises MalformedDocument."""
    elf = Elf(image)
    if elf.machine != EM_CUDA:
        raise image.malformed(f"machine {elf.machine} is not CUDA ({EM_CUDA})")
    elf.check_whole()
    note = _content_of(elf, ".note.nv.tkinfo")
    release = _TOOL_RELEASE.search(note)
    kernels = {name: index for index, name in _kernels(elf)}
    return CubinFacts(
        capability=_capability(elf, note),
        kernels=tuple(sorted(kernels)),
        usages=tuple(_usages(elf, kernels)),
        abi_version=elf.abi_version,
        tool=release[1].decode() if release else None,
    )


def _content_of(elf: Elf, name: str) -> bytes:
    section = elf.section(name)
    return elf.content_of(section) if section else b""


def _capability(elf: Elf, note: bytes) -> Capability:
    match elf.abi_version:
        case 7:
            number, specific = elf.flags & 0xFF, bool(elf.flags & 0x800)
        case 8:
            number = elf.flags >> 8 & 0xFF
            specific = bool(elf.flags & 0x8) or _is_arch_specific(_content_of(elf, ".nv.compat"))
        case other:
            raise elf.image.malformed(f"cubin ABI version {other} is not known, wanted 7 or 8")
    suffix = "a" if specific else ""
    tool = _TOOL_ARCH.search(note)
    if tool and int(tool[1]) == number and not suffix:
        suffix = tool[2].decode()
    try:
        return Capability.parse(f"cuda:sm_{number}{suffix}")
    except InvalidCapability:
        raise elf.image.malformed(f"its flags {elf.flags:#x} name no architecture") from None


def _is_arch_specific(compat: bytes) -> bool:
    """Walk the attributes of .nv.compat: a format byte, an attribute byte, then two bytes, or a length and a value."""
    offset = 0
    while offset + 4 <= len(compat):
        layout, attribute = compat[offset], compat[offset + 1]
        if layout == 2 and attribute == _COMPAT_ARCH_SPECIFIC:
            return compat[offset + 2] != 0
        offset += 4 + (int.from_bytes(compat[offset + 2 : offset + 4], "little") if layout == 4 else 0)
    return False


def _kernels(elf: Elf) -> Iterator[tuple[int, str]]:
    """Yield index and name of each entry point."""
    found = elf.table_of(SHT_SYMTAB)
    if found is None:
        return
    table, names = found
    seen = 0
    for index, symbol in enumerate(elf.symbols(table, names=names)):
        if symbol.kind == _STT_FUNC and symbol.other & _STO_CUDA_ENTRY:
            seen += 1
            elf.image.check_count(seen, limit=KERNELS, what="kernels")
            yield index, elf.image.text_at(symbol.name_offset, end=names.offset + names.size_bytes)


def _usages(elf: Elf, kernels: dict[str, int]) -> Iterator[KernelUsage]:
    sections = {section.name: section for section in elf.sections}
    numbers = dict(_attributes(_content_of(elf, ".nv.info")))
    for name, index in sorted(kernels.items()):
        code, shared = sections.get(f".text.{name}"), sections.get(f".nv.shared.{name}")
        yield KernelUsage(
            name=name,
            size_bytes=code.size_bytes if code else 0,
            registers=numbers.get((_REGCOUNT, index)),
            shared_bytes=shared.size_bytes if shared else 0,
            stack_bytes=numbers.get((_FRAME_SIZE, index)),
        )


def _attributes(content: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((attribute, symbol index), number) of the attributes that hold both."""
    offset = 0
    while offset + 4 <= len(content):
        layout, attribute = content[offset], content[offset + 1]
        length = int.from_bytes(content[offset + 2 : offset + 4], "little") if layout == _SVAL else 0
        offset += 4
        if layout == _SVAL and length == _OF_FUNCTION.size and offset + length <= len(content):
            index, number = _OF_FUNCTION.unpack_from(content, offset)
            yield (attribute, index), number
        offset += length
