"""Where the functions of a shared object are, and the executable bytes that are in none.

The latter hold the padding between functions, the PLT and start files of a stripped library, and whatever else a
processor may be sent to: they are gaps, which is no word for harmless. What a symbol of an object covers is one too;
literal pools, as AArch64 marks them, are neither.
A range comes from a function symbol, or from the unwind table (`.eh_frame`), which survives `strip` and which
compilers write for every function on x86-64 and AArch64.
Sources: gabi, chapter 4; ELF for the Arm 64-bit Architecture, "Mapping symbols" (`$x` begins code, `$d` data).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from aot.facts.elf import (
    PF_EXECUTE,
    PT_LOAD,
    SHF_EXECUTE,
    SHN_UNDEF,
    SHT_DYNSYM,
    SHT_NOBITS,
    SHT_SYMTAB,
    STT_FUNC,
    STT_NOTYPE,
    STT_OBJECT,
    Elf,
    Symbol,
)
from aot.facts.unwind import unwind_ranges

SYMBOLS = 1_000_000  # the most that are read

_STT_GNU_IFUNC = 10


@dataclass(frozen=True)
class Area:
    """Executable bytes of the file, at `address` once they are mapped. `name` is for people: "section .text"."""

    name: str
    address: int
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


@dataclass(frozen=True)
class Function:
    """Bytes to decode from their first one. `name` is the mangled symbol; "" where only the unwind table knows it.

    A gap has the name of its section, and `origin`, from which its offsets count, is where that section begins.
    """

    name: str
    address: int
    content: bytes
    origin: int


@dataclass(frozen=True)
class Code:
    """What is executable in a file: functions, and the bytes that belong to none."""

    functions: tuple[Function, ...]
    gaps: tuple[Function, ...]


@dataclass(frozen=True)
class _Marks:
    """Addresses: ranges that are code, objects, literal pools, and the names of places where code begins."""

    code: list[tuple[int, int]]
    objects: list[tuple[int, int]]
    pools: list[tuple[int, int]]
    names: dict[int, str]


def read_code(elf: Elf) -> Code:
    """Return the functions of an executable file or shared object. Raises MalformedDocument."""
    areas = Areas(elf)
    marks = _marks(elf, areas)
    covered = list(_subtract(_merge(marks.code), _merge([*marks.objects, *marks.pools])))
    # Sections that touch are still apart in the file.
    starts = sorted({*marks.names, *(start for start, _ in marks.code), *areas.starts})
    between = _subtract(areas.ranges, _merge([*covered, *marks.pools]))
    return Code(
        functions=tuple(
            Function(marks.names.get(low, ""), low, areas.content(low, high), low)
            for low, high in _split(covered, starts)
        ),
        gaps=tuple(areas.gap(low, high) for low, high in between),
    )


class Areas:
    """Executable sections, or segments where the section table was stripped; overlapping ones are refused."""

    def __init__(self, elf: Elf) -> None:
        self._image = elf.image
        self._areas = sorted(_areas(elf), key=lambda area: area.address)
        for area in self._areas:
            elf.image.check(area.offset, area.size_bytes)
        if any(before.end > after.address for before, after in pairwise(self._areas)):
            raise elf.image.malformed("its executable sections overlap")
        self.starts = [area.address for area in self._areas]
        self.ranges = [(area.address, area.end) for area in self._areas]

    def end_after(self, address: int) -> int | None:
        """Return the end of the area that holds `address`; None where none does."""
        index = bisect_right(self.starts, address) - 1
        if index < 0 or address >= self._areas[index].end:
            return None
        return self._areas[index].end

    def content(self, low: int, high: int) -> bytes:
        area = self._at(low)
        return self._image.bytes_at(area.offset + low - area.address, high - low)

    def gap(self, low: int, high: int) -> Function:
        area = self._at(low)
        return Function(area.name, low, self.content(low, high), area.address)

    def _at(self, address: int) -> Area:
        return self._areas[bisect_right(self.starts, address) - 1]


def _areas(elf: Elf) -> Iterator[Area]:
    for section in elf.sections:
        if section.flags & SHF_EXECUTE and section.kind != SHT_NOBITS and section.size_bytes:
            yield Area(f"section {section.name}", section.address, section.offset, section.size_bytes)
    for segment in () if elf.sections else elf.segments():
        if segment.kind == PT_LOAD and segment.flags & PF_EXECUTE and segment.size_bytes:
            yield Area("an executable segment", segment.address, segment.offset, segment.size_bytes)


def _marks(elf: Elf, areas: Areas) -> _Marks:
    marks = _Marks(code=list(_unwound(elf, areas)), objects=[], pools=[], names={})
    unsized: set[int] = set()
    places: set[int] = set()
    mapping: dict[int, str] = {}
    for symbol, end, name in _symbols(elf, areas):
        places.add(symbol.value)
        if symbol.kind in (STT_FUNC, _STT_GNU_IFUNC):
            marks.names.setdefault(symbol.value, name)
            if symbol.size_bytes:
                marks.code.append((symbol.value, end))
            else:
                unsized.add(symbol.value)
        elif symbol.kind == STT_OBJECT and symbol.size_bytes:
            marks.objects.append((symbol.value, end))
        elif symbol.kind == STT_NOTYPE and name[:2] in ("$x", "$d"):
            mapping[symbol.value] = name[1]
    sized = _merge(marks.code)
    ends = sorted({*places, *(end for _, end in areas.ranges)})
    # Written in assembly without a size, as in crti.o: it reaches to whatever is named next.
    marks.code.extend((value, _following(ends, value)) for value in unsized if not _holds(sized, value))
    turns = sorted({*(value for value, letter in mapping.items() if letter == "x"), *(e for _, e in areas.ranges)})
    marks.pools.extend((value, _following(turns, value)) for value, letter in mapping.items() if letter == "d")
    return marks


def _unwound(elf: Elf, areas: Areas) -> Iterator[tuple[int, int]]:
    for low, high in unwind_ranges(elf):
        end = areas.end_after(low)
        if end is not None:
            yield low, min(high, end)


def _symbols(elf: Elf, areas: Areas) -> Iterator[tuple[Symbol, int, str]]:
    """Yield what is defined in an executable area: the symbol, its end, its name."""
    seen = 0
    for table_kind in (SHT_SYMTAB, SHT_DYNSYM):
        found = elf.table_of(table_kind)
        if found is None:
            continue
        table, names = found
        for symbol in elf.symbols(table, names=names):
            seen += 1
            elf.image.check_count(seen, limit=SYMBOLS, what="symbols")
            end = None if symbol.section == SHN_UNDEF else areas.end_after(symbol.value)
            if end is not None:
                name = elf.image.text_at(symbol.name_offset, end=names.offset + names.size_bytes)
                yield symbol, min(symbol.value + symbol.size_bytes, end), name


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of `ranges`, sorted; neighbours that touch become one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _subtract(ranges: list[tuple[int, int]], holes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of sorted, disjoint `ranges` without sorted, disjoint `holes`."""
    lows = [low for low, _ in holes]
    for low, high in ranges:
        index = max(bisect_right(lows, low) - 1, 0)
        while index < len(holes) and holes[index][0] < high:
            if holes[index][0] > low:
                yield low, holes[index][0]
            low = max(low, holes[index][1])
            index += 1
        if low < high:
            yield low, high


def _split(ranges: list[tuple[int, int]], starts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield `ranges` cut at every start: decoding begins anew there."""
    for low, high in ranges:
        cuts = starts[bisect_right(starts, low) : bisect_right(starts, high - 1)]
        yield from zip([low, *cuts], [*cuts, high], strict=True)


def _holds(ranges: list[tuple[int, int]], value: int) -> bool:
    index = bisect_right(ranges, (value, 1 << 65)) - 1
    return index >= 0 and value < ranges[index][1]


def _following(sorted_values: list[int], value: int) -> int:
    index = bisect_right(sorted_values, value)
    return sorted_values[index] if index < len(sorted_values) else value
