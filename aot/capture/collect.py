"""From what a command left in its caches to entries: each hashed, and with nothing of this machine in it.

What Triton writes of a kernel's group names files by absolute paths, and so does vLLM's table of what it has compiled;
the caches' directory in it becomes a mark, and `aot.capture.restore` puts the new directory in its place. Torch's
entries of graphs lose what differs each time they are made (`aot.capture.pickled`), and get the name that torch would
give them then. No other file is changed: torch compares none of these bytes with a hash, but what reads a format that
we do not know might.
"""

import contextlib
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.bundle import blob_of
from aot.capture.entries import Entry, Kind, kind_of, walk, within_caches
from aot.capture.pickled import name_of, source_of, stripped
from aot.capture.roots import ROOTS
from aot.capture.units import is_litter
from aot.schema.digest import Digest

MARK = b"[AOT_CACHES]"
_NAMES = frozenset(root.name for root in ROOTS)


@dataclass(frozen=True)
class Collected:
    """`paths` has the bytes of every entry, which may lie elsewhere than the cache wrote them."""

    entries: tuple[Entry, ...]
    paths: Mapping[Digest, Path]


def list_paths(directory: Path) -> frozenset[str]:
    """Return every file of the caches below `directory` that may be an entry."""
    return frozenset(path for path, _ in walk(directory) if path.partition("/")[0] in _NAMES and not is_litter(path))


def collect(
    directory: Path, *, scratch: Path, only: Collection[str] | None = None, as_found: Collection[str] = ()
) -> Collected:
    """Return the entries below `directory`: all, or `only` those of these paths. Changed ones are written to `scratch`.

    Equal graphs are one entry, and programs that torch writes again out of an entry are none. Paths of `as_found`, of
    what was restored or put together elsewhere, keep their bytes. Raises OSError where a file cannot be read.
    """
    found, kept = list_paths(directory), frozenset(as_found)
    programs = _programs(directory, found)
    entries: dict[str, Entry] = {}
    paths: dict[Digest, Path] = {}
    for number, path in enumerate(sorted(found if only is None else only)):
        place = directory / path
        if path not in kept and _is_one_of(programs, path, place):
            continue
        if names_places(path):
            place = _without_place(place, directory, scratch / f"{number}.entry")
        elif path not in kept:
            path, place = _stripped(path, place, scratch / f"{number}.entry")
        blob = blob_of(place)
        entries[path] = Entry(kind_of(path), path, blob.digest, blob.size_bytes)
        paths[blob.digest] = place
    return Collected(tuple(entries[path] for path in sorted(entries)), paths)


def _programs(directory: Path, found: Collection[str]) -> frozenset[bytes]:
    """Return the digests of the generated programs that entries of graphs have in them."""
    graphs = (directory / path for path in found if kind_of(path) is Kind.FXGRAPH)
    sources = (source_of(place.read_bytes()) for place in graphs)
    return frozenset(hashlib.sha256(source.encode()).digest() for source in sources if source is not None)


def _is_one_of(programs: frozenset[bytes], path: str, place: Path) -> bool:
    if kind_of(path) is not Kind.CODE or not path.endswith(".py"):
        return False
    return hashlib.sha256(place.read_bytes()).digest() in programs


def _stripped(path: str, place: Path, target: Path) -> tuple[str, Path]:
    """Return the entry's path and place without what differs each time, or what was given."""
    if kind_of(path) not in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD):
        return path, place
    before = place.read_bytes()
    after = stripped(before)
    if after == before:
        return path, place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(after)
    return f"{path.rpartition('/')[0]}/{name_of(after)}", target


def repeats(directory: Path, new: Collection[str], known: Collection[str]) -> frozenset[str]:
    """Return those of the `new` files that are entries which are there already under `known` paths, written once more.

    A program that loads saved artifacts writes what is in them beside what was restored: nothing was compiled.
    """
    found = set()
    for path in new:
        if kind_of(path) in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD):
            with contextlib.suppress(OSError):
                name = name_of(stripped((directory / path).read_bytes()))
                if f"{path.rpartition('/')[0]}/{name}" in known:
                    found.add(path)
    return frozenset(found)


def names_places(path: str) -> bool:
    """Whether the entry names other files by absolute paths.

    Sources: triton/runtime/cache.py, put_group; vllm/compilation/backends.py, CompilerManager.save_to_file: literals of
    Python, each handle of a compiled graph with the place where it was saved.
    """
    name = path.rpartition("/")[2]
    if name == "vllm_compile_cache.py":
        return path.startswith("vllm/")
    return "triton" in within_caches(path)[1][:2] and name.startswith("__grp__") and name.endswith(".json")


def _without_place(place: Path, directory: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(place.read_bytes().replace(str(directory).encode(), MARK))
    return target
