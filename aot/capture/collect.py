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
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aot.bundle.hashing import blob_in
from aot.capture.entries import Entry, Kind, kind_of, within_caches
from aot.capture.listing import list_caches
from aot.capture.pickled import MOST_BYTES, name_of, source_of, stripped
from aot.capture.plain import open_plain, read_plain
from aot.schema.digest import Digest
from aot.schema.spec import Blob

MARK = b"[AOT_CACHES]"


@dataclass(frozen=True)
class Collected:
    """`paths` has the bytes of every entry, which may lie elsewhere than the cache wrote them.

    `left_out` has a line for each file that was asked for and could not be kept.
    """

    entries: tuple[Entry, ...]
    paths: Mapping[Digest, Path]
    left_out: tuple[str, ...] = ()


def list_paths(directory: Path) -> frozenset[str]:
    """Return every file of the caches below `directory` that may be an entry (`aot.capture.listing`)."""
    return list_caches(directory).paths


def collect(
    directory: Path, *, scratch: Path, only: Collection[str] | None = None, as_found: Collection[str] = ()
) -> Collected:
    """Return the entries below `directory`: all, or `only` those of these paths. Changed ones are written to `scratch`.

    Equal graphs are one entry, and programs that torch writes again out of an entry are none. Paths of `as_found`, of
    what was restored or put together elsewhere, keep their bytes. `scratch` holds nothing that collecting has written
    before. What may not be read, or is still being written, is left out. Raises OSError where a file is none by now: a
    link or a pipe has its name.
    """
    found, kept = list_paths(directory), frozenset(as_found)
    programs = _programs(directory, found)
    entries: dict[str, Entry] = {}
    paths: dict[Digest, Path] = {}
    left_out: list[str] = []
    for number, path in enumerate(sorted(found if only is None else only)):
        try:
            if path not in kept and _is_one_of(programs, directory, path):
                continue
            place, name = directory / path, path
            if (changed := _changed(directory, path, as_found=path in kept)) is not None:
                place, name = scratch / f"{number}.entry", changed[0]
                blob: Blob | None = _write(place, changed[1])
            else:
                with open_plain(directory, path) as file:
                    blob = _settled(file)
        except PermissionError:
            left_out.append(f"{path}: it may not be read")
            continue
        if blob is None:
            left_out.append(f"{path}: it is still being written")
            continue
        entries[name] = Entry(kind_of(name), name, blob.digest, blob.size_bytes)
        paths[blob.digest] = place
    return Collected(tuple(entries[path] for path in sorted(entries)), paths, tuple(left_out))


def _settled(file: BinaryIO) -> Blob | None:
    """Return digest and size of a file; None for one that changes meanwhile: its writer outlives the command."""
    before = os.fstat(file.fileno())
    blob = blob_in(file, most_bytes=before.st_size)
    after = os.fstat(file.fileno())
    changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)
    return None if changed or blob.size_bytes != before.st_size else blob


def _programs(directory: Path, found: Collection[str]) -> frozenset[bytes]:
    """Return the digests of the generated programs that entries of graphs have in them."""
    digests = set()
    for path in found:
        if kind_of(path) is Kind.FXGRAPH:
            with contextlib.suppress(PermissionError):
                if (source := source_of(_start_of(directory, path))) is not None:
                    digests.add(hashlib.sha256(source.encode()).digest())
    return frozenset(digests)


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
