"""Captures as bundles on this disk, ready to be pushed, and the same again on a worker: the proof.

    command -> entries -> artifact -> bundle -> push: pending
    worker: the command again, on empty caches -> its own entries, which a second run used -> live

What was pushed says that a command is worth capturing; the entries that go live are those that a worker's own compiler
wrote, because nothing can tell from the bytes of an entry what it computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aot.bundle import write_bundle
from aot.bundle.assemble import assemble
from aot.capture.capture import Captured, capture, warnings_for, warnings_of
from aot.capture.collect import Collected, collect, list_paths, names_places
from aot.capture.entries import Entry, entry_of
from aot.capture.record import artifact_of, capture_recipe, command_source, require_level, with_new
from aot.capture.tables import form_of
from aot.capture.union import join_tables, not_joined, unjoined, with_tables
from aot.errors import InvalidInput
from aot.keys import factors_of, fingerprint_of
from aot.pipeline.build import Staged, provenance_of, read_staged
from aot.pipeline.source import PackedSource
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.names import Reference
from aot.schema.profile import Profile
from aot.schema.report import CompileReport, Qualification
from aot.schema.spec import Blob, CommandSource, Spec
from aot.source.pack import pack_tree

if TYPE_CHECKING:
    from aot.capture.prepare import Prepared


@dataclass(frozen=True)
class Making:
    """What a bundle of caches is made of. `environ` is the command's, without our pins."""

    reference: Reference
    command: tuple[str, ...]
    profile: Profile
    effective: Environment
    environ: Mapping[str, str]
    builder: str
    scratch: Path


def stage(
    making: Making, *, source: Path | None, requirements: tuple[str, ...] = (), again: bool = True
) -> tuple[Staged, Captured, PackedSource | None]:
    """Capture the command of `making`, and stage the bundle below its scratch directory.

    Raises InvalidInput where the command fails or leaves nothing, InvalidProfile where the entries are not of the
    profile's CPU level, InvalidSource for a tree that cannot be packed.
    """
    require_level(making.profile, making.effective)
    packed, tree = None, None
    if source is not None:
        into = making.scratch / "packed"
        into.mkdir(parents=True)
        found = pack_tree(source, into)
        tree = found.blob
        place = {found.blob.digest: found.path}
    captured = capture(
        making.command,
        environ=making.environ,
        effective=making.effective,
        scratch=making.scratch / "capture",
        again=again,
    )
    artifact = artifact_of(
        captured.collected, making.profile, making.effective, environ=making.environ, seconds=captured.seconds
    )
    named = _source(making, captured.collected.entries, tree, requirements)
    if source is not None:
        packed = PackedSource(named, (), place)
    staged = _stage(making, named, artifact, captured.collected.paths, warnings=warnings_of(captured))
    return staged, captured, packed


def require_tree(prepared: "Prepared") -> None:
    """Raises InvalidInput where no worker could prove what is written back: no tree of the command is known."""
    source = prepared.manifest.spec.source if prepared.manifest is not None else None
    if not isinstance(source, CommandSource) or source.tree is None:
        raise InvalidInput(
            f"nothing was restored of {prepared.reference} that names a tree, so what is compiled could not go live",
            hint="capture it with `aot capture --source TREE --push`, or run without --write-back",
        )


def stage_union(making: Making, prepared: "Prepared", new_paths: frozenset[str], *, found_in: Path) -> Staged:
    """Stage the bundle of everything that was restored, and of the files below `found_in` that were compiled besides.

    Its command is the one that ran, since that makes the new entries again; the tree is that of the bundle that was
    restored. Rows that a table has got and that cannot be joined with those that were restored are left out, and told
    of in the report's warnings. Raises OSError, and InvalidInput where none was.
    """
    require_tree(prepared)
    directory = prepared.directory
    assert directory is not None and prepared.artifact is not None and prepared.manifest is not None
    there = list_paths(directory)
    restored = {file.path: file.digest for file in prepared.artifact.files}
    # Tables grow with what is compiled. One that cannot be joined stays as it was restored; but one that names places
    # is taken as it is found, for its run has read what was restored: not in another bundle's directory, where it lacks
    # what this one has.
    is_same = found_in == directory
    places = {path for path in restored if path in there and names_places(path) and is_same}
    tables = {path for path in restored if form_of(path) and path in (there if is_same else list_paths(found_in))}
    only = (new_paths - restored.keys()) | tables | places
    new = collect(found_in, scratch=making.scratch / "new", only=only, beside=restored.keys())
    parts = ((prepared.artifact.files, prepared.blobs), ([entry.as_file() for entry in new.entries], new.paths))
    joined = join_tables(parts, scratch=making.scratch / "tables")
    dropped = not_joined(path for path in unjoined(parts, joined) if path not in places)
    added = tuple(entry for entry in new.entries if entry.path not in tables or entry.path in places)
    artifact = with_new(prepared.artifact, Collected(added, new.paths))
    artifact = with_tables(artifact, (entry.as_file() for entry in joined.entries))
    entries = tuple(entry_of(file) for file in artifact.files)
    before = prepared.manifest.spec.source
    assert isinstance(before, CommandSource)
    # The node's cache has what was restored as it was; the command may have written it anew, or taken it away.
    blobs = {digest: path for digest, path in prepared.blobs.items() if path.exists()}
    left = {path for path, digest in restored.items() if digest not in blobs and path in there}
    old = collect(directory, scratch=making.scratch / "old", only=left, as_found=left)
    named = command_source(making.command, entries, before.tree)
    named = msgspec.structs.replace(named, requirements=before.requirements, union_of=prepared.bundle)
    paths = {**new.paths, **old.paths, **blobs, **joined.paths}
    return _stage(making, named, artifact, paths, warnings=warnings_for((*new.left_out, *dropped)))


def _source(
    making: Making, entries: tuple[Entry, ...], tree: Blob | None, requirements: tuple[str, ...]
) -> CommandSource:
    named = command_source(making.command, entries, tree)
    return msgspec.structs.replace(named, requirements=tuple(sorted(requirements)))


def _stage(
    making: Making,
    source: CommandSource,
    artifact: Artifact,
    paths: Mapping[Digest, Path],
    *,
    warnings: tuple[str, ...] = (),
) -> Staged:
    spec = Spec(
        namespace=making.reference.namespace,
        name=making.reference.name,
        source=source,
        profile=making.profile.name,
        recipe=capture_recipe(making.environ),
    )
    manifest = assemble(
        spec,
        making.profile,
        fingerprint=fingerprint_of(factors_of(spec, making.profile)),
        artifacts=(artifact,),
        qualification=Qualification(numerics=""),
        compile_report=CompileReport(warnings=warnings),
        provenance=provenance_of(spec, builder=making.builder),
    )
    return read_staged(write_bundle(making.scratch / "bundle", manifest=manifest, files=paths).directory)
