"""From what a command left in its caches to entries: each hashed, and with nothing of this machine in it.

What Triton writes of a kernel's group names files by absolute paths, and so does vLLM's table of what it has compiled;
the caches' directory in it becomes a mark, and `aot.capture.restore` puts the new directory in its place. Torch's
entries of graphs lose what differs each time they are made (`aot.capture.pickled`), and get the name that torch would
give them then. No other file is changed: torch compares none of these bytes with a hash, but what reads a format that
we do not know might.

The command that filled the caches is not trusted by a worker that collects them: nothing is read through a link
(`aot.capture.plain`), and what is changed gets a new file where the command cannot write.
"""

import contextlib
import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.bundle.hashing import blob_in
from aot.capture.entries import Entry, Kind, kind_of, walk, within_caches
from aot.capture.pickled import MOST_BYTES, name_of, source_of, stripped
from aot.capture.plain import open_plain, read_plain
from aot.capture.roots import ROOTS
from aot.capture.units import is_litter
from aot.schema.digest import Digest
from aot.schema.spec import Blob

MARK = b"[AOT_CACHES]"
_NAMES = frozenset(root.name for root in ROOTS)
_NO_TEXT = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that are not UTF-8: no manifest can name them


@dataclass(frozen=True)
class Collected:
    """`paths` has the bytes of every entry, which may lie elsewhere than the cache wrote them."""

    entries: tuple[Entry, ...]
    paths: Mapping[Digest, Path]


def list_paths(directory: Path) -> frozenset[str]:
    """Return every file of the caches below `directory` that may be an entry; none whose name is not UTF-8."""
    found = (path for path, _ in walk(directory) if path.partition("/")[0] in _NAMES and not is_litter(path))
    return frozenset(path for path in found if not _NO_TEXT.search(path))


def collect(
    directory: Path, *, scratch: Path, only: Collection[str] | None = None, as_found: Collection[str] = ()
) -> Collected:
    """Return the entries below `directory`: all, or `only` those of these paths. Changed ones are written to `scratch`.

    Equal graphs are one entry, and programs that torch writes again out of an entry are none. Paths of `as_found`, of
    what was restored or put together elsewhere, keep their bytes. `scratch` holds nothing that collecting has written
    before. Raises OSError where a file cannot be read, or is none by now: a link or a pipe has its name.
    """
    found, kept = list_paths(directory), frozenset(as_found)
    programs = _programs(directory, found)
    entries: dict[str, Entry] = {}
    paths: dict[Digest, Path] = {}
    for number, path in enumerate(sorted(found if only is None else only)):
        if path not in kept and _is_one_of(programs, directory, path):
            continue
        place, name = directory / path, path
        if (changed := _changed(directory, path, as_found=path in kept)) is not None:
            place, name = scratch / f"{number}.entry", changed[0]
            blob = _write(place, changed[1])
        else:
            with open_plain(directory, path) as file:
                blob = blob_in(file)
        entries[name] = Entry(kind_of(name), name, blob.digest, blob.size_bytes)
        paths[blob.digest] = place
    return Collected(tuple(entries[path] for path in sorted(entries)), paths)


def _programs(directory: Path, found: Collection[str]) -> frozenset[bytes]:
    """Return the digests of the generated programs that entries of graphs have in them."""
    graphs = (path for path in found if kind_of(path) is Kind.FXGRAPH)
    sources = (source_of(_start_of(directory, path)) for path in graphs)
    return frozenset(hashlib.sha256(source.encode()).digest() for source in sources if source is not None)


def _is_one_of(programs: frozenset[bytes], directory: Path, path: str) -> bool:
    if kind_of(path) is not Kind.CODE or not path.endswith(".py"):
        return False
    return hashlib.sha256(_start_of(directory, path)).digest() in programs


def _changed(directory: Path, path: str, *, as_found: bool) -> tuple[str, bytes] | None:
    """Return path and bytes of the entry without this machine's places, or what differs each time; None as it is."""
    if names_places(path):
        table = _start_of(directory, path)
        return (path, table.replace(str(directory).encode(), MARK)) if len(table) <= MOST_BYTES else None
    if as_found or kind_of(path) not in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD):
        return None
    before = _start_of(directory, path)
    after = stripped(before)
    return None if after == before else (f"{path.rpartition('/')[0]}/{name_of(after)}", after)


def _start_of(directory: Path, path: str) -> bytes:
    """Return the whole file; of one that is too long to be looked into, so much that this can be seen."""
    return read_plain(directory, path, most_bytes=MOST_BYTES + 1)


def _write(target: Path, content: bytes) -> Blob:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.write(content)
    return Blob(digest=Digest.of(content), size_bytes=len(content))


def repeats(directory: Path, new: Collection[str], known: Collection[str]) -> frozenset[str]:
    """Return those of the `new` files that are entries which are there already under `known` paths, written once more.

    A program that loads saved artifacts writes what is in them beside what was restored: nothing was compiled.
    """
    found = set()
    for path in new:
        if kind_of(path) in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD):
            with contextlib.suppress(OSError):
                name = name_of(stripped(_start_of(directory, path)))
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
