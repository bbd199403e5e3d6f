"""What a shared object asks of the host that maps it."""

from pathlib import Path

from msgspec import Struct

from aot.facts import versions
from aot.facts.dynamic import DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME, Dynamic
from aot.facts.elf import EM_AARCH64, EM_X86_64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, Elf
from aot.facts.image import open_image
from aot.schema.artifact import ElfFacts

_MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}

# Parts of the C++ runtime that are functions of libstdc++ (or libc++abi) and never instantiated from a header.
_RUNTIME_SYMBOLS = (
    b"__cxa_throw",
    b"__gxx_personality_v0",
    b"_ZSt9terminatev",
    b"_ZSt17__throw_bad_allocv",
    b"_ZSt20__throw_length_errorPKc",
    b"_ZNSt8ios_base4InitC1Ev",
)
# Printed by libstdc++'s default terminate handler: found in a copy whose symbols were hidden and stripped.
_RUNTIME_TEXT = b"terminate called after throwing an instance of '"


class SearchPath(Struct, frozen=True):
    """Directories that a file adds to the loader's search, as written: `$ORIGIN` is not replaced."""

    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


def read_search_path(path: Path) -> SearchPath:
    """Return DT_RPATH and DT_RUNPATH of a shared object or program. Raises MalformedDocument, and OSError."""
    with open_image(path) as image:
        dynamic = Dynamic(Elf(image))
        rpath, runpath = (
            tuple(part for offset in dynamic.values(tag) for part in dynamic.text(offset).split(":") if part)
            for tag in (DT_RPATH, DT_RUNPATH)
        )
    return SearchPath(rpath, runpath)


def read_elf(path: Path) -> ElfFacts:
    """Return machine, needed libraries, and the floors of glibc and libstdc++ of a shared object.

    `static_libstdcxx` is true where the file holds its own copy of the C++ runtime: beside torch's libstdc++.so.6 that
    makes two in one process, which ends in SIGSEGV inside std::regex or std::locale.
    Raises MalformedDocument for anything but a 64-bit little-endian x86_64 or aarch64 file, and OSError.
    """
    with open_image(path) as image:
        elf = Elf(image)
        if elf.machine not in _MACHINES:
            raise image.malformed(f"machine {elf.machine} is neither x86_64 nor aarch64")
        dynamic = Dynamic(elf)
        names = frozenset(versions.needed(dynamic))
        soname = next((dynamic.text(offset) for offset in dynamic.values(DT_SONAME)), None)
        return ElfFacts(
            machine=_MACHINES[elf.machine],
            soname=soname,
            needed=tuple(dynamic.text(offset) for offset in dynamic.values(DT_NEEDED)),
            libc_floor=versions.libc_floor(names, dynamic=dynamic),
            libstdcxx_floor=versions.libstdcxx_floor(names),
            static_libstdcxx=not (soname or "").startswith("libstdc++.") and _holds_runtime(elf),
        )


def _holds_runtime(elf: Elf) -> bool:
    return elf.image.holds(_RUNTIME_TEXT) or _defines_runtime(elf)


def _defines_runtime(elf: Elf) -> bool:
    for kind in (SHT_DYNSYM, SHT_SYMTAB):
        found = elf.table_of(kind)
        if found is None:
            continue
        table, names = found
        end = names.offset + names.size_bytes
        # Linkers share tails between names, so a name may begin inside another.
        wanted = {
            offset
            for symbol in _RUNTIME_SYMBOLS
            for offset in elf.image.find_all(symbol + b"\0", start=names.offset, end=end)
        }
        if wanted and any(
            symbol.name_offset in wanted and symbol.section != SHN_UNDEF for symbol in elf.symbols(table, names=names)
        ):
            return True
    return False
