"""Ranges of functions from `.eh_frame`, the table that the C++ runtime unwinds with.

Sources: Linux Standard Base core specification, "Exception Frames" (Common and Frame Information Entries, pointer
encodings DW_EH_PE_*); DWARF 4, section 7.6 (LEB128).
"""

import struct
from collections.abc import Iterator

from aot.facts.elf import PT_GNU_EH_FRAME, PT_LOAD, Elf
from aot.facts.image import Image

ENTRIES = 1_000_000  # the most that are read

_LENGTH = struct.Struct("<I")
_LONG_LENGTH = struct.Struct("<Q")
_LONG = 0xFFFFFFFF
_PC_RELATIVE = 0x10
_ABSOLUTE_ENCODINGS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}


def unwind_ranges(elf: Elf) -> Iterator[tuple[int, int]]:
    """Yield (first address, end) of each function that the table lists; nothing where there is no table.

    Raises MalformedDocument for a table that leaves the file.
    """
    place = _place(elf)
    if place is None:
        return
    offset, address, size_bytes = place
    end = offset + size_bytes
    encodings: dict[int, int | None] = {}
    for seen in range(ENTRIES + 1):
        elf.image.check_count(seen, limit=ENTRIES, what="unwind entries")
        if offset + 4 > end:
            return
        entry, following = _entry(elf.image, offset)
        if following <= entry:
            return  # a length of zero ends the table
        back = elf.image.unpack(_LENGTH, entry)[0]
        if back:
            common = entry - back
            if common not in encodings:
                encodings[common] = _encoding(elf.image, common)
            encoding = encodings[common]
            found = None if encoding is None else _range(elf.image, entry + 4, encoding, shift=address - place[0])
            if found is not None and found[0] < found[1]:
                yield found
        offset = following


def _place(elf: Elf) -> tuple[int, int, int] | None:
    """Return offset, address and size of the table; by its section, or by the header that the loader maps."""
    section = elf.section(".eh_frame")
    if section is not None and section.size_bytes:
        elf.image.check(section.offset, section.size_bytes)
        return section.offset, section.address, section.size_bytes
    for header in elf.segments():
        if header.kind != PT_GNU_EH_FRAME:
            continue
        # Version, three encodings, then the table's address: linkers write it as four bytes relative to itself.
        version, encoding, *_, distance = elf.image.unpack(struct.Struct("<BBBBi"), header.offset)
        if version != 1 or encoding != 0x1B:
            return None
        address = header.address + 4 + distance
        for segment in elf.segments():
            inside = address - segment.address
            if segment.kind == PT_LOAD and 0 <= inside < segment.size_bytes:
                return segment.offset + inside, address, segment.size_bytes - inside
    return None


def _entry(image: Image, offset: int) -> tuple[int, int]:
    """Return where the entry's content begins and where the next entry is."""
    length = image.unpack(_LENGTH, offset)[0]
    start = offset + 4
    if length == _LONG:
        length = image.unpack(_LONG_LENGTH, start)[0]
        start += 8
    image.check(start, length)
    return start, start + length


def _encoding(image: Image, common: int) -> int | None:
    """Return how the entries that refer to this common entry spell addresses; None where it cannot be told."""
    start, following = _entry(image, common)
    content = image.bytes_at(start, following - start)
    if len(content) < 8 or content[:4] != bytes(4):
        return None
    augmentation, _, rest = content[5:].partition(b"\0")
    if not augmentation.startswith(b"z"):
        return 0 if not augmentation else None
    position = 0
    for _ in range(4):  # code alignment, data alignment, return register, length of what follows
        position = _skip_leb128(rest, position)
    for letter in augmentation[1:].decode("ascii", errors="replace"):
        if position >= len(rest):
            return None
        match letter:
            case "R":
                return rest[position]
            case "L":
                position += 1
            case "P":
                size = _size_of(rest[position])
                if size is None:
                    return None
                position += 1 + size
            case "S" | "B" | "G":
                continue
            case _:
                return None
    return 0


def _range(image: Image, offset: int, encoding: int, *, shift: int) -> tuple[int, int] | None:
    layout = _ABSOLUTE_ENCODINGS.get(encoding & 0x0F)
    if layout is None or encoding & 0x70 not in (0, _PC_RELATIVE):
        return None
    unpacker = struct.Struct(layout)
    start = image.unpack(unpacker, offset)[0]
    # The size is spelled with the same width and is never relative or negative.
    size = image.unpack(struct.Struct(layout.upper()), offset + unpacker.size)[0]
    if encoding & 0x70 == _PC_RELATIVE:
        start += offset + shift
    return start, start + size


def _size_of(encoding: int) -> int | None:
    layout = _ABSOLUTE_ENCODINGS.get(encoding & 0x0F)
    return None if layout is None else struct.calcsize(layout)


def _skip_leb128(content: bytes, position: int) -> int:
    while position < len(content) and content[position] & 0x80:
        position += 1
    return position + 1
