"""The tables of a 64-bit little-endian ELF file: header, segments, sections.

Sources: System V ABI (gabi), chapters 4 and 5; elf(5). Numbers that count entries are checked against the file's size
and a limit before anything is read, so work is bounded.
"""

import struct
from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from aot.facts.image import Image

EM_X86_64 = 62
EM_AARCH64 = 183
EM_CUDA = 190
EM_AMDGPU = 224

PT_LOAD = 1
PT_DYNAMIC = 2
PT_GNU_EH_FRAME = 0x6474E550
PF_EXECUTE = 1
SHT_NULL = 0
SHT_SYMTAB = 2
SHT_NOTE = 7
SHT_NOBITS = 8
SHT_DYNSYM = 11
SHN_UNDEF = 0
SHF_EXECUTE = 4
SHF_COMPRESSED = 0x800
STT_NOTYPE = 0
STT_OBJECT = 1
STT_FUNC = 2

SECTIONS = 65_536  # the most that are read; shared objects have dozens, cubins a handful for each kernel

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class Segment(Struct, frozen=True):
    kind: int
    offset: int
    address: int
    size_bytes: int  # in the file
    flags: int = 0


class Section(Struct, frozen=True):
    name: str
    kind: int
    offset: int
    size_bytes: int
    link: int
    flags: int = 0
    address: int = 0
    info: int = 0


class Symbol(Struct, frozen=True):
    """`section` is SHN_UNDEF where the symbol is asked for and not defined; `other` holds visibility and markers."""

    name_offset: int  # in the file
    kind: int
    other: int
    section: int
    value: int = 0
    size_bytes: int = 0


class Elf:
    """The tables of one file, read when they are asked for. Raises MalformedDocument for anything but such a file."""

    def __init__(self, image: Image) -> None:
        self.image = image
        if image.size_bytes < _HEADER.size or image.bytes_at(0, 4) != b"\x7fELF":
            raise image.malformed("it does not begin with an ELF header")
        header = image.unpack(_HEADER, 0)
        identity: bytes = header[0]
        if identity[4] != 2 or identity[5] != 1:
            raise image.malformed("wanted a 64-bit little-endian ELF file")
        self.abi_version = identity[8]
        self.machine: int = header[2]
        self.flags: int = header[7]
        self._segments: tuple[int, int, int] = (header[5], header[9], header[10])  # offset, entry size, count
        self._sections: tuple[int, int, int] = (header[6], header[11], header[12])
        self._names_index: int = header[13]

    def segments(self) -> tuple[Segment, ...]:
        offset, entry_bytes, count = self._segments
        self._check_table(offset, entry_bytes, count, wanted=_SEGMENT.size)
        rows = (self.image.unpack(_SEGMENT, offset + index * entry_bytes) for index in range(count))
        return tuple(
            Segment(kind=row[0], offset=row[2], address=row[3], size_bytes=row[5], flags=row[1]) for row in rows
        )

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section; empty where the file was stripped of its section table."""
        offset, entry_bytes, count = self._sections
        if offset == 0:
            return ()
        if count == 0:
            # More than 65,279 sections: the count is the size of the first entry (gabi, chapter 4).
            count = self.image.unpack(_SECTION, offset)[5]
        self._check_table(offset, entry_bytes, count, wanted=_SECTION.size)
        self.image.check_count(count, limit=SECTIONS, what="sections")
        rows = [self.image.unpack(_SECTION, offset + index * entry_bytes) for index in range(count)]
        names_index = rows[0][6] if self._names_index == 0xFFFF and rows else self._names_index
        if not rows or names_index >= count:
            return ()
        names = rows[names_index]
        return tuple(
            Section(
                name=self.image.text_at(names[4] + row[0], end=names[4] + names[5]) if row[1] else "",
                kind=row[1],
                offset=row[4],
                size_bytes=row[5],
                link=row[6],
                flags=row[2],
                address=row[3],
                info=row[7],
            )
            for row in rows
        )

    def check_whole(self) -> None:
        """Raise MalformedDocument where a table or the content of a section lies outside of the file."""
        for segment in self.segments():
            self.image.check(segment.offset, segment.size_bytes)
        for section in self.sections:
            if section.kind not in (SHT_NULL, SHT_NOBITS):
                self.image.check(section.offset, section.size_bytes)

    def content_of(self, section: Section) -> bytes:
        if section.kind == SHT_NOBITS:
            return b""
        return self.image.bytes_at(section.offset, section.size_bytes)

    def table_of(self, kind: int) -> tuple[Section, Section] | None:
        """Return the symbol table of that kind and the section of its names; gabi allows one of each kind."""
        tables = [section for section in self.sections if section.kind == kind]
        self.image.check_count(len(tables), limit=1, what=f"symbol table of kind {kind}")
        if not tables or tables[0].link >= len(self.sections):
            return None
        names = self.sections[tables[0].link]
        self.image.check(names.offset, names.size_bytes)
        return tables[0], names

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self, table: Section, *, names: Section) -> Iterator[Symbol]:
        """Yield the symbols of `table`, whose names are in the section `names`."""
        content = self.content_of(table)
        whole = len(content) - len(content) % _SYMBOL.size
        for row in _SYMBOL.iter_unpack(memoryview(content)[:whole]):
            yield Symbol(
                name_offset=names.offset + row[0],
                kind=row[1] & 0xF,
                other=row[2],
                section=row[3],
                value=row[4],
                size_bytes=row[5],
            )

    def _check_table(self, offset: int, entry_bytes: int, count: int, *, wanted: int) -> None:
        if count and entry_bytes < wanted:
            raise self.image.malformed(f"a table has entries of {entry_bytes} bytes, wanted {wanted}")
        self.image.check(offset, entry_bytes * count)
