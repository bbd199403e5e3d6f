"""Which libstdc++.so.6 this container's torch gets, without loading one: the first copy in a process stays for all.

Sources: ld.so(8), "dynamic string tokens" and the order of directories; glibc's dl-cache.h for /etc/ld.so.cache.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from aot.environment.host import Host
from aot.environment.packages import find_package
from aot.errors import MalformedDocument
from aot.facts import highest_defined_version, read_elf, read_search_path

LIBSTDCXX = "libstdc++.so.6"

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sII20x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def libstdcxx_version(host: Host) -> str | None:
    """Return the highest GLIBCXX_ version of the libstdc++ that is mapped, or that torch would map: "3.4.30"."""
    for library in _candidates(host):
        try:
            if read_elf(library).machine == host.machine:
                return highest_defined_version(library, "GLIBCXX_")
        except (OSError, MalformedDocument):
            continue  # not there, or not for this machine: the loader goes on, and so do we
    return None


def _candidates(host: Host) -> Iterator[Path]:
    mapped = _mapped(host)
    if mapped is not None:
        yield mapped
        return
    rpath, runpath = _search_path_of_torch(host)
    variable = [entry for entry in host.variables.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if entry]
    for directory in (*rpath, *(host.path(entry) for entry in variable), *runpath):
        yield directory / LIBSTDCXX
    for entry in _cached(host):
        yield host.path(entry)
    for entry in (*(f"{top}/{host.machine}-linux-gnu" for top in ("/lib", "/usr/lib")), *_DEFAULT_DIRECTORIES):
        yield host.path(f"{entry}/{LIBSTDCXX}")


def _mapped(host: Host) -> Path | None:
    for line in (host.text("/proc/self/maps") or "").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].rpartition("/")[2].startswith(LIBSTDCXX):
            return host.path(fields[5])
    return None


def _search_path_of_torch(host: Host) -> tuple[list[Path], list[Path]]:
    """Return DT_RPATH and DT_RUNPATH of the first torch library; the former counts only without the latter."""
    directory = find_package(host, "torch")
    if directory is None:
        return [], []
    library = directory / "lib" / "libc10.so"
    try:
        found = read_search_path(library)
    except (OSError, MalformedDocument):
        return [], []

    def expand(entries: tuple[str, ...]) -> list[Path]:
        origin = str(library.parent)
        return [Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for entry in entries]

    return ([], expand(found.runpath)) if found.runpath else (expand(found.rpath), [])


def _cached(host: Host) -> Iterator[str]:
    """Yield the paths that the loader's cache has for libstdc++, in its order."""
    try:
        content = host.path("/etc/ld.so.cache").read_bytes()
    except OSError:
        return
    start = content.find(_CACHE_MAGIC)
    if start < 0 or start + _CACHE_HEADER.size > len(content):
        return
    _, entries, _ = _CACHE_HEADER.unpack_from(content, start)
    position = start + _CACHE_HEADER.size
    for _ in range(entries):
        if position + _CACHE_ENTRY.size > len(content):
            return
        _, name, path, _, _ = _CACHE_ENTRY.unpack_from(content, position)
        if _text(content, start + name) == LIBSTDCXX:
            yield _text(content, start + path)
        position += _CACHE_ENTRY.size


def _text(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset, offset + 4096)
    return content[offset:end].decode(errors="replace") if 0 <= offset < end else ""
