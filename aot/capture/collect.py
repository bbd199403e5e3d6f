"""From what a command left in its caches to entries: each hashed, and with nothing of this machine in it.

What Triton writes of a kernel's group names files by absolute paths, and so does vLLM's table of what it has compiled;
the caches' directory in it becomes a mark, and `aot.capture.restore` puts the new directory in its place. Torch's
entries of graphs lose what differs each time they are made (`aot.capture.pickled`) and the kernels that nobody uses, or
that are entries themselves (`aot.capture.bundled`), and get the name that torch would give them then. No other file is
changed: torch compares none of these bytes with a hash, but what reads a format that we do not know might.

The command that filled the caches is not trusted by a worker that collects them: nothing is read through a link
(`aot.capture.plain`), and what is changed gets a new file where the command cannot write.
"""

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from aot.bundle.hashing import blob_in
from aot.capture.entries import Entry, Kind, kind_of, within_caches
from aot.capture.listing import list_caches
from aot.capture.pickled import MOST_BYTES, name_of, source_of, stripped
from aot.capture.plain import open_plain, read_plain
from aot.schema.digest import Digest
from aot.schema.spec import Blob

if TYPE_CHECKING:
    from aot.capture.kernels import Kernels
    from aot.capture.tuners import Chosen

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
    directory: Path,
    *,
    scratch: Path,
    listed: Collection[str] | None = None,
    only: Collection[str] | None = None,
    as_found: Collection[str] = (),
    unused: Collection[str] | None = (),
    beside: Collection[str] = (),
) -> Collected:
    """Return the entries below `directory`: all, or `only` those of these paths. Changed ones are written to `scratch`.

    `listed`: all that lies there, of a caller who has just listed it.
    Equal graphs are one entry, and programs that torch writes again out of an entry are none. Paths of `as_found`, of
    what was restored or put together elsewhere, keep their bytes. Graphs lose the kernels whose files are `unused`, and
    the files of those that are entries, here or `beside`; with None, before a run can tell, they lose none. `scratch`
    holds nothing that collecting has written before. What may not be read, or is still being written, is left out.
    Raises OSError where a file is none by now: a link or a pipe has its name.
    """
    from aot.capture.bundled import chosen_in  # what only restores has no use for it
    from aot.capture.kernels import kernels_of

    found, kept = list_paths(directory) if listed is None else listed, frozenset(as_found)
    programs = _programs(directory, found)
    entries: dict[str, Entry] = {}
    paths: dict[Digest, Path] = {}
    left_out: list[str] = []
    chosen, kernels = chosen_in(directory, found), None
    # Graphs last: what is kept of their kernels follows from what is an entry by then.
    for number, path in enumerate(sorted(found if only is None else only, key=lambda path: (_is_graph(path), path))):
        if kernels is None and unused is not None and _is_graph(path):
            kernels = kernels_of((*entries, *beside), unused)
        try:
            changed = _changed(directory, path, path in kept, chosen, kernels)
            name, place, blob = _taken(directory, path, changed, scratch / f"{number}.entry")
        except PermissionError:
            left_out.append(f"{path}: it may not be read")
            continue
        if blob is None:
            left_out.append(f"{path}: it is still being written")
            continue
        if path not in kept and blob.digest in programs and kind_of(path) is Kind.CODE and path.endswith(".py"):
            continue
        entries[name] = Entry(kind_of(name), name, blob.digest, blob.size_bytes)
        paths[blob.digest] = place
    return Collected(tuple(entries[path] for path in sorted(entries)), paths, tuple(left_out))


def _taken(
    directory: Path, path: str, changed: tuple[str, bytes] | None, scratch: Path
) -> tuple[str, Path, Blob | None]:
    if changed is not None:
        return changed[0], scratch, _write(scratch, changed[1])
    with open_plain(directory, path) as file:
        return path, directory / path, _settled(file)


def _settled(file: BinaryIO) -> Blob | None:
    """Return digest and size of a file; None for one that changes meanwhile: its writer outlives the command."""
    before = os.fstat(file.fileno())
    blob = blob_in(file, most_bytes=before.st_size)
    after = os.fstat(file.fileno())
    changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)
    return None if changed or blob.size_bytes != before.st_size else blob


def _programs(directory: Path, found: Collection[str]) -> frozenset[Digest]:
    """Return the digests of the generated programs that entries of graphs have in them."""
    digests = set()
    for path in found:
        if kind_of(path) is Kind.FXGRAPH:
            with contextlib.suppress(PermissionError):
                if (source := source_of(_start_of(directory, path))) is not None:
                    digests.add(Digest.of(source.encode()))
    return frozenset(digests)


def _is_graph(path: str) -> bool:
    return kind_of(path) in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD)


def _changed(
    directory: Path, path: str, as_found: bool, chosen: "Chosen", kernels: "Kernels | None"
) -> tuple[str, bytes] | None:
    """Return path and bytes of the entry without this machine's places, or what differs each time; None as it is."""
    if names_places(path):
        table = _start_of(directory, path)
        return (path, table.replace(str(directory).encode(), MARK)) if len(table) <= MOST_BYTES else None
    if as_found or not _is_graph(path):
        return None
    from aot.capture.bundled import slimmed

    before = _start_of(directory, path)
    after = slimmed(stripped(before), path, chosen=chosen, kernels=kernels)
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
    for path in filter(_is_graph, new):
        with contextlib.suppress(OSError):
            content = stripped(_start_of(directory, path))
            parent = path.rpartition("/")[0]
            if f"{parent}/{name_of(content)}" in known or _is_but_for_kernels(content, directory, parent, known):
                found.add(path)
    return frozenset(found)


def _is_but_for_kernels(content: bytes, directory: Path, parent: str, known: Collection[str]) -> bool:
    """Whether a known entry of the same graph differs in its kernels alone: a bundle has fewer of these than torch."""
    from aot.capture.bundled import without_kernels

    paths = [path for name in os.listdir(directory / parent) if (path := f"{parent}/{name}") in known]
    wanted = without_kernels(content) if paths else b""
    return any(without_kernels(stripped(_start_of(directory, path))) == wanted for path in paths)


def names_places(path: str) -> bool:
    """Whether the entry names other files by absolute paths.

    Sources: triton/runtime/cache.py, put_group; vllm/compilation/backends.py, CompilerManager.save_to_file: literals of
    Python, each handle of a compiled graph with the place where it was saved.
    """
    name = path.rpartition("/")[2]
    if name == "vllm_compile_cache.py":
        return path.startswith("vllm/")
    return "triton" in within_caches(path)[1][:2] and name.startswith("__grp__") and name.endswith(".json")
