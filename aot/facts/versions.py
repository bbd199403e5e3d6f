"""Versioned symbols: what a shared object asks of others, and what it defines itself.

Sources: Linux Standard Base core specification, "Symbol Versioning" (Elfxx_Verneed, Elfxx_Verdef).
"""

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from aot.facts.dynamic import DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM, Dynamic
from aot.facts.elf import Elf
from aot.facts.image import open_image

VERSIONS = 10_000  # the most that are read, asked for or defined

_NEED = struct.Struct("<HHIII")
_NEED_ENTRY = struct.Struct("<IHHII")
_DEFINITION = struct.Struct("<HHHHIII")
_DEFINITION_NAME = struct.Struct("<II")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")

# Versions that name a feature of the loader instead of a release, and the release that brought it
# (glibc's NEWS for 2.36; the TLS descriptors marker is in 2.42 and in no release before it).
_LIBC_FEATURES = {"GLIBC_ABI_DT_RELR": "2.36", "GLIBC_ABI_GNU_TLS": "2.42", "GLIBC_ABI_GNU2_TLS": "2.42"}

# The GLIBCXX_ version of the first libstdc++ that has a CXXABI_1.3.N version (libstdc++ manual, "ABI Policy and
# Guidelines"): code may use a new part of the language runtime and only old parts of the library.
_CXXABI = {
    8: "3.4.20",
    9: "3.4.21",
    10: "3.4.22",
    11: "3.4.23",
    12: "3.4.26",
    13: "3.4.29",
    14: "3.4.31",
    15: "3.4.33",
    16: "3.4.34",
}


def highest_defined_version(path: Path, prefix: str) -> str | None:
    """Return the highest version with `prefix` ("GLIBCXX_") that the library defines: "3.4.30". None: it has none.

    Raises MalformedDocument.
    """
    with open_image(path) as image:
        elf = Elf(image)
        return highest(name.removeprefix(prefix) for name in defined(Dynamic(elf)) if name.startswith(prefix))


def libc_floor(names: Iterable[str], *, dynamic: Dynamic) -> str | None:
    """Return the lowest glibc release that has every version of `names`; None where none is of glibc."""
    floors = []
    for name in names:
        if name == "GLIBC_PRIVATE" or not name.startswith("GLIBC_"):
            continue
        version = _LIBC_FEATURES.get(name) or name.removeprefix("GLIBC_")
        if not _NUMBERS.fullmatch(version):
            raise dynamic.image.malformed(f"it asks for {name}, and no glibc release is known to have it")
        floors.append(version)
    return highest(floors)


def libstdcxx_floor(names: Iterable[str]) -> str | None:
    """Return the lowest GLIBCXX_ version whose libstdc++ has every version of `names`."""
    floors = []
    for name in names:
        family, _, version = name.partition("_")
        if family == "GLIBCXX":
            floors.append(version)
        elif family == "CXXABI" and re.fullmatch(r"1\.3\.\d+", version):
            floors.append(_glibcxx_with(int(version.rpartition(".")[2])))
        elif family == "CXXABI":
            floors.append("3.4")
    return highest(floors)


def _glibcxx_with(minor: int) -> str:
    """Return the first GLIBCXX_ version beside CXXABI_1.3.`minor`."""
    newest = max(_CXXABI)
    if minor > newest:
        # Newer than this table: each new CXXABI_ version came with at least one new GLIBCXX_ version.
        return f"3.4.{int(_CXXABI[newest].rpartition('.')[2]) + minor - newest}"
    return _CXXABI.get(minor, "3.4")


def highest(versions: Iterable[str]) -> str | None:
    """Return the greatest of dotted numbers; anything else among them ("TUNABLES") is passed over."""
    numeric = [version for version in versions if _NUMBERS.fullmatch(version)]
    return max(numeric, key=lambda version: tuple(map(int, version.split("."))), default=None)


def needed(dynamic: Dynamic) -> Iterator[str]:
    """Yield the version names that the object asks of its libraries."""
    offset = dynamic.offset_of(DT_VERNEED)
    seen = 0
    for _ in range(dynamic.number(DT_VERNEEDNUM)) if offset is not None else ():
        _, entries, _, entry_offset, following = dynamic.image.unpack(_NEED, offset)
        position = offset + entry_offset
        for _ in range(entries):
            _, _, _, name, next_entry = dynamic.image.unpack(_NEED_ENTRY, position)
            seen += 1
            dynamic.image.check_count(seen, limit=VERSIONS, what="versions")
            yield dynamic.text(name)
            if next_entry == 0:
                break
            position += next_entry
        if following == 0:
            return
        offset += following


def defined(dynamic: Dynamic) -> Iterator[str]:
    """Yield the version names that the object defines."""
    offset = dynamic.offset_of(DT_VERDEF)
    for seen in range(dynamic.number(DT_VERDEFNUM)) if offset is not None else ():
        dynamic.image.check_count(seen, limit=VERSIONS, what="versions")
        _, _, _, _, _, names_offset, following = dynamic.image.unpack(_DEFINITION, offset)
        name, _ = dynamic.image.unpack(_DEFINITION_NAME, offset + names_offset)
        yield dynamic.text(name)
        if following == 0:
            return
        offset += following
