"""Unions: what a run compiled on top of a bundle, joined with what the bundle's tag stands for when it goes live.

    pod      restored + newly compiled -> pushed, and says which bundle it is a union of
    worker   the entries of the live bundles, as they are -> the run's command on them -> its new entries beside them
    publish  the registry lets the tag stand for it only where no entry of what it stood for is missing

Live entries are a worker's own, so they are joined without running anything again. Two pods that write back at once
lose nothing: whoever is second is joined with the first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.capture.collect import Collected, names_places
from aot.capture.entries import Entry, entry_of, graphs_of
from aot.capture.pins import FACTOR, OF_KERNELS
from aot.capture.plain import read_plain
from aot.capture.record import COLD, GRAPHS, RANKS, TAG, WARM, captured
from aot.capture.tables import MOST_BYTES, form_of, joined
from aot.errors import QualificationFailed
from aot.facts.versions import highest
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.spec import File

NOT_JOINED = "its rows cannot be joined with those that were there before"
_FLOORS = ("libc", "libstdcxx")
Part = tuple[Iterable[File], Mapping[Digest, Path]]  # files, and where the bytes of each lie


@dataclass(frozen=True)
class Base:
    """A live bundle of caches on this disk, that a union is to hold."""

    digest: Digest
    artifact: Artifact
    paths: Mapping[Digest, Path]


def entries_of(bases: Sequence[Base], *, scratch: Path) -> Collected:
    """Return every entry of the bases; of two under one path the first, since torch names files by what they hold.

    But for tables, which are joined: such a one is written below `scratch`. `left_out` has a line for each that could
    not be: the first base's stays.
    """
    entries: dict[str, Entry] = {}
    paths: dict[Digest, Path] = {}
    for base in bases:
        for file in base.artifact.files:
            entries.setdefault(file.path, entry_of(file))
            paths.setdefault(file.digest, base.paths[file.digest])
    parts = [(base.artifact.files, base.paths) for base in bases]
    tables = join_tables(parts, scratch=scratch)
    for entry in tables.entries:
        entries[entry.path] = entry
    return Collected(tuple(entries.values()), {**paths, **tables.paths}, not_joined(unjoined(parts, tables)))


def with_bases(artifact: Artifact, bases: Sequence[Base]) -> Artifact:
    """Return the artifact with all that the bases hold, under the conditions of all of them.

    Of two files under one path the first base's stays, also where the run has written it anew: its blob has to be given
    beside the run's own.
    Raises QualificationFailed where a base was made for another CPU, with another tag or under other conditions:
    its entries would not be found, or be wrong.
    """
    for base in bases:
        _require_same_host(base, artifact)
    if not bases:
        return artifact
    several = (*(base.artifact for base in bases), artifact)
    files: dict[str, File] = {}
    for one in several:
        for file in one.files:
            files.setdefault(file.path, file)
    measured = {name: bases[0].artifact.facts[name] for name in (COLD, WARM) if name in bases[0].artifact.facts}
    graphs = len(graphs_of(files))
    # Equal lines of one part are graphs of several ranks; those of two parts are the same graphs.
    lines: Counter[str] = Counter()
    for one in several:
        lines |= Counter(one.coverage.constraints[1:])
    guards = _joined((artifact, *(base.artifact for base in bases)))
    return msgspec.structs.replace(
        artifact,
        files=tuple(files.values()),
        facts={**artifact.facts, **measured, GRAPHS: str(graphs)},
        coverage=captured(graphs, lines.elements(), guards),
        host_guards=guards,
    )


def with_grown_tables(union: Artifact, run: Artifact) -> Artifact:
    """Return the union with the tables of what is where as the run left them, which has read its base's and added.

    Not for a union with what went live beside the run: then the live table stays, and what only the run's names is
    found below it, in torch's own entries. For tables that `join_tables` cannot read.
    """
    tables = {file.path: file for file in run.files if names_places(file.path)}
    return with_tables(union, tables.values())


def with_tables(union: Artifact, tables: Iterable[File]) -> Artifact:
    """Return the union with these files in the place of those under their paths."""
    found = {file.path: file for file in tables}
    return msgspec.structs.replace(union, files=tuple(found.get(file.path, file) for file in union.files))


def join_tables(parts: Sequence[Part], *, scratch: Path) -> Collected:
    """Return every table (`aot.capture.tables`) that several of the parts have otherwise, with the rows of all of them.

    Of two values for one row the first part's stays. A new table is written below `scratch`, which may be shared. What
    cannot be joined, or whose bytes are not there, is not among them. Raises OSError.
    """
    rows: dict[str, list[tuple[File, Path]]] = {}
    for files, paths in parts:
        for file in files:
            if form_of(file.path) is not None and file.digest in paths:
                rows.setdefault(file.path, []).append((file, paths[file.digest]))
    entries: list[Entry] = []
    found: dict[Digest, Path] = {}
    for path, tables in sorted(rows.items()):
        places = {file.digest: place for file, place in tables}
        content = _join_all(path, list(places.values())) if len(places) > 1 else None
        if content is None:
            continue
        file = File(path=path, digest=Digest.of(content), size_bytes=len(content))
        found[file.digest] = places.get(file.digest) or _write_table(content, file.digest, scratch)
        entries.append(entry_of(file))
    return Collected(tuple(entries), found)


def unjoined(parts: Sequence[Part], tables: Collected) -> tuple[str, ...]:
    """Return every table that the parts have otherwise and that is not among the joined `tables`: rows are lost."""
    found: dict[str, set[Digest]] = {}
    for files, _ in parts:
        for file in files:
            if form_of(file.path) is not None:
                found.setdefault(file.path, set()).add(file.digest)
    joined_paths = {entry.path for entry in tables.entries}
    return tuple(sorted(path for path, digests in found.items() if len(digests) > 1 and path not in joined_paths))


def not_joined(paths: Iterable[str]) -> tuple[str, ...]:
    """Return what is told of tables whose rows are lost: one line each."""
    return tuple(f"{path}: {NOT_JOINED}" for path in paths)


def _join_all(path: str, places: Sequence[Path]) -> bytes | None:
    both: bytes | None = None
    for place in places:
        content = read_plain(place.parent, place.name, most_bytes=MOST_BYTES + 1)
        both = content if both is None else joined(path, both, content)
        if both is None:
            return None
    return both


def _write_table(content: bytes, digest: Digest, scratch: Path) -> Path:
    scratch.mkdir(parents=True, exist_ok=True)
    place = scratch / f"{digest.hex}.table"
    place.write_bytes(content)
    return place


def _require_same_host(base: Base, artifact: Artifact) -> None:
    theirs, ours = base.artifact.facts.get(TAG), artifact.facts.get(TAG)
    if theirs != ours:
        raise QualificationFailed(
            f"{base.digest.short} was made with the key tag {theirs}, this worker has {ours}: no union holds both",
            hint="let the workers of one profile have CPUs of the same features",
        )
    pinned, made = (
        {name: one.facts[f"{FACTOR}{name}"] for name in OF_KERNELS if f"{FACTOR}{name}" in one.facts}
        for one in (base.artifact, artifact)
    )
    if pinned != made and artifact.capability.family != "cpu":
        raise QualificationFailed(
            f"the kernels of {base.digest.short} were compiled with {_told(pinned)}, those of this worker with "
            f"{_told(made)}: no union holds both",
            hint="capture the command by itself: a capture without live entries has the pins of today",
        )
    old, new = (
        {guard.kind: guard.value for guard in one.host_guards if guard.kind not in (*_FLOORS, RANKS)}
        for one in (base.artifact, artifact)
    )
    for kind in sorted({*old, *new}):
        if old.get(kind) != new.get(kind):
            raise QualificationFailed(
                f"{base.digest.short} is for {kind} {old.get(kind, 'of any value')}, what this worker has made is for "
                f"{new.get(kind, 'any')}: no union holds both",
                hint="capture the command by itself, under a name or tag of its own",
            )


def _told(pinned: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pinned.items()) or "nothing that was recorded"


def _joined(artifacts: Sequence[Artifact]) -> tuple[HostGuard, ...]:
    """The guards of the first, with the highest floors of all."""
    kept = {guard.kind: guard for guard in artifacts[0].host_guards}
    for kind in _FLOORS:
        found = [guard.value for one in artifacts for guard in one.host_guards if guard.kind == kind]
        if (floor := highest(value for value in found if value)) is not None:
            kept[kind] = HostGuard(kind=kind, value=floor)
    if any(kept.get(RANKS) not in one.host_guards for one in artifacts):
        kept.pop(RANKS, None)  # entries of several numbers of processes: torch's keys tell them apart
    return tuple(kept[kind] for kind in sorted(kept))
