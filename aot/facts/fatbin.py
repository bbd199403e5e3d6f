"""What a fat binary holds: several images of the same kernels, of which a driver takes the one for the card it finds.

    header   magic 0xBA55ED50, version 1, size of this header (16), size of all that follows
    entry    kind (1 PTX, 2 ELF: a cubin), version 0x101, size of this header (64 or more), size of the padded image,
             size of the compressed image (0: it is not), ..., two numbers, the architecture, ..., flags, ..., size of
             the image when unpacked; then the image

The first header is public (fatBinaryHeader in fatbinary.h of CUDA 10); NVIDIA publishes no account of the entries. They
are as `fatbinary` of CUDA 13.0 writes them: every field here was compared with what it was asked to write (kinds, sm_80
to sm_120, suffixes a and f, all of its --compress-mode), and with what cuobjdump lists of it. Whatever looks otherwise
is refused by name and not guessed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from aot.errors import InvalidCapability
from aot.facts.cubin import CubinFacts, facts_of_cubin
from aot.facts.elf import SHF_COMPRESSED, SHT_NOBITS, Elf, Section
from aot.facts.image import Image, open_image
from aot.schema.capability import Capability

MAGIC, VERSION, ENTRY_VERSION = 0xBA55ED50, 1, 0x101
ENTRIES = 4096  # the most that are read
_HEADER = struct.Struct("<IHHQ")
# kind, version, header size, padded size, compressed size, -, minor, major, architecture, -, flags, -, unpacked size
_ENTRY = struct.Struct("<HHIQIIHHIQQQQ")
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x10_0000, 0x20_0000
# What the driver takes, and what `nvcc -rdc=true` leaves for its linker.
_EMBEDDED = (".nv_fatbin", "__nv_relfatbin")
_COMPRESSIONS = {0x8000: "zstd", 0x2000: "lz4"}


class ImageKind(IntEnum):
    PTX = 1
    ELF = 2


@dataclass(frozen=True, kw_only=True)
class FatImage:
    """One image. `capability` is the architecture that it is for, of PTX the one that it starts from.

    `ptx` is the version of the language. `cubin` is None of PTX, and of what is compressed.
    """

    kind: ImageKind
    capability: Capability
    size_bytes: int
    compression: str | None = None
    ptx: str | None = None
    cubin: CubinFacts | None = None


def read_fatbin(path: Path) -> tuple[FatImage, ...]:
    """Return the images of the fat binary at `path`, in its order. Raises MalformedDocument, and OSError."""
    with open_image(path) as image:
        return _images_of(image)


def read_embedded(library: Path) -> Iterator[tuple[FatImage, ...]]:
    """Yield the images of each fat binary that nvcc has put into a shared object, one after the other.

    Raises MalformedDocument, and OSError.
    """
    with open_image(library) as image:
        yield from embedded_in(Elf(image))


def embedded_in(elf: Elf) -> Iterator[tuple[FatImage, ...]]:
    """As `read_embedded`, of a shared object that is open."""
    for section in elf.sections:
        if section.name in _EMBEDDED:
            yield from _fatbins_of(elf.image, section)


def _fatbins_of(image: Image, section: Section) -> Iterator[tuple[FatImage, ...]]:
    if section.kind == SHT_NOBITS or section.flags & SHF_COMPRESSED:
        raise image.malformed(f"its section {section.name} has no bytes as they are (flags {section.flags:#x})")
    begin, end, seen = section.offset, section.offset + section.size_bytes, 0
    # As the linker has put them: each begins at a multiple of eight, with zeros before it.
    while (begin := image.after_zeros(begin, end=end)) < end:
        magic, _, header_bytes, size_bytes = image.unpack(_HEADER, begin)
        size_bytes += header_bytes
        if magic != MAGIC or size_bytes > end - begin:
            raise image.malformed(
                f"its section {section.name} has {end - begin} bytes from offset {begin} on, and no fat binary of "
                f"{size_bytes} bytes there (it begins with {magic:#x}, a fat binary with {MAGIC:#x})"
            )
        images = _images_of(Image(image.bytes_at(begin, size_bytes), name=f"{image.name}, {section.name}"))
        begin, seen = begin + size_bytes, seen + max(1, len(images))
        image.check_count(seen, limit=ENTRIES, what=f"images in {section.name}")
        yield images


def _images_of(image: Image) -> tuple[FatImage, ...]:
    magic, version, header_bytes, size_bytes = image.unpack(_HEADER, 0)
    if magic != MAGIC:
        raise image.malformed(f"it begins with {magic:#x}, a fat binary with {MAGIC:#x}")
    if version != VERSION or header_bytes < _HEADER.size:
        raise image.malformed(f"version {version} of fat binaries is not known, wanted {VERSION}")
    if header_bytes + size_bytes != image.size_bytes:
        raise image.malformed(f"its header says {header_bytes + size_bytes} bytes, it has {image.size_bytes}")
    return tuple(_images(image, header_bytes))


def _images(image: Image, offset: int) -> Iterator[FatImage]:
    seen = 0
    while offset < image.size_bytes:
        seen += 1
        image.check_count(seen, limit=ENTRIES, what="images")
        entry = image.unpack(_ENTRY, offset)
        _, version, header_bytes, padded_bytes = entry[:4]
        if version != ENTRY_VERSION or header_bytes < _ENTRY.size:
            raise image.malformed(f"the entry at offset {offset} has version {version:#x}, wanted {ENTRY_VERSION:#x}")
        content = image.bytes_at(offset + header_bytes, padded_bytes)
        yield _image(image, entry, content)
        offset += header_bytes + padded_bytes


def _image(image: Image, entry: tuple[int, ...], content: bytes) -> FatImage:
    kind, _, _, padded_bytes, compressed_bytes, _, minor, major, arch, _, flags, _, unpacked_bytes = entry
    if kind not in set(ImageKind):
        raise image.malformed(f"it holds an image of kind {kind:#x}, known are {ImageKind.PTX} (PTX) and 2 (ELF)")
    suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
    try:
        capability = Capability.parse(f"cuda:sm_{arch}{suffix}")
    except InvalidCapability:
        raise image.malformed(f"an image is for sm_{arch}{suffix}, which is no architecture") from None
    compression = next((name for bit, name in _COMPRESSIONS.items() if flags & bit), None)
    if (compression is None) != (compressed_bytes == 0) or compressed_bytes > padded_bytes:
        raise image.malformed(
            f"the image for {capability} has {compressed_bytes} compressed bytes and flags {flags:#x}"
        )
    cubin = None
    if kind == ImageKind.ELF and compression is None:
        cubin = facts_of_cubin(Image(content, name=image.name))
        if cubin.capability.target.rstrip("af") != capability.target.rstrip("af"):
            raise image.malformed(f"the image for {capability} is code for {cubin.capability}")
        capability = cubin.capability
    return FatImage(
        kind=ImageKind(kind),
        capability=capability,
        size_bytes=unpacked_bytes if compression else padded_bytes,
        compression=compression,
        ptx=f"{major}.{minor}" if kind == ImageKind.PTX else None,
        cubin=cubin,
    )
