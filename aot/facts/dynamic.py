"""The dynamic section of an ELF file, read through its segments as the loader does: a section table may lie."""

import struct

from aot.facts.elf import PT_DYNAMIC, PT_LOAD, Elf, Segment

DT_NEEDED = 1
DT_STRTAB = 5
DT_STRSZ = 10
DT_SONAME = 14
DT_RPATH = 15
DT_RUNPATH = 29
DT_VERDEF = 0x6FFFFFFC
DT_VERDEFNUM = 0x6FFFFFFD
DT_VERNEED = 0x6FFFFFFE
DT_VERNEEDNUM = 0x6FFFFFFF

TAGS = 4096  # the most that are read; libraries have dozens

_ENTRY = struct.Struct("<QQ")


class Dynamic:
    """Tags and texts of the dynamic section; a file without one has no tags."""

    def __init__(self, elf: Elf) -> None:
        self.image = elf.image
        segments = elf.segments()
        self._loaded = tuple(segment for segment in segments if segment.kind == PT_LOAD)
        sections = [segment for segment in segments if segment.kind == PT_DYNAMIC]
        self.image.check_count(len(sections), limit=1, what="dynamic section")
        self.tags = tuple(tag for segment in sections for tag in self._tags_in(segment))
        self._texts = self.offset_of(DT_STRTAB)
        self._texts_end = (self._texts or 0) + self.number(DT_STRSZ)

    def values(self, tag: int) -> tuple[int, ...]:
        return tuple(value for kind, value in self.tags if kind == tag)

    def number(self, tag: int) -> int:
        return next(iter(self.values(tag)), 0)

    def offset_of(self, tag: int) -> int | None:
        """Return the file offset that the address of `tag` stands for; None where the tag is absent."""
        for address in self.values(tag):
            for segment in self._loaded:
                if segment.address <= address < segment.address + segment.size_bytes:
                    return address - segment.address + segment.offset
            raise self.image.malformed(f"address {address:#x} of its dynamic section is in no segment")
        return None

    def text(self, offset: int) -> str:
        """Return the text at `offset` of the dynamic string table."""
        if self._texts is None:
            raise self.image.malformed("its dynamic section has no string table")
        return self.image.text_at(self._texts + offset, end=self._texts_end)

    def _tags_in(self, segment: Segment) -> list[tuple[int, int]]:
        content = self.image.bytes_at(segment.offset, segment.size_bytes - segment.size_bytes % _ENTRY.size)
        tags = []
        for kind, value in _ENTRY.iter_unpack(content):
            if kind == 0:
                break
            tags.append((kind, value))
            self.image.check_count(len(tags), limit=TAGS, what="dynamic tags")
        return tags
