"""From what a command left in its caches to entries: each hashed, and with nothing of this machine in it.

What Triton writes of a kernel's group names files by absolute paths; the caches' directory in it becomes a mark, and
`aot.capture.restore` puts the new directory in its place. No other file is changed: torch compares none of these
bytes with a hash, but what reads a format that we do not know might.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.bundle import blob_of
from aot.capture.entries import Entry, kind_of, walk
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


def collect(directory: Path, *, scratch: Path, only: Collection[str] | None = None) -> Collected:
    """Return the entries below `directory`: all, or `only` those of these paths. Changed ones are written to `scratch`.

    Raises OSError where a file cannot be read.
    """
    entries: list[Entry] = []
    paths: dict[Digest, Path] = {}
    for path in sorted(list_paths(directory) if only is None else only):
        place = directory / path
        if names_places(path):
            place = _without_place(place, directory, scratch / f"{len(entries)}.entry")
        blob = blob_of(place)
        entries.append(Entry(kind_of(path), path, blob.digest, blob.size_bytes))
        paths[blob.digest] = place
    return Collected(tuple(entries), paths)


def names_places(path: str) -> bool:
    """Whether the entry names other files by absolute paths (triton/runtime/cache.py, put_group)."""
    name = path.rpartition("/")[2]
    return "triton" in path.split("/")[:2] and name.startswith("__grp__") and name.endswith(".json")


def _without_place(place: Path, directory: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(place.read_bytes().replace(str(directory).encode(), MARK))
    return target
