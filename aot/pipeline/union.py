"""Unions on a worker: the live bundles that one has to hold are fetched before its proof, and again where a tag moved.

What a union is, and why nothing of one is lost: `aot.capture.union`.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from aot.bundle import write_bundle
from aot.capture.capture import warnings_for
from aot.capture.union import Base, join_tables, not_joined, unjoined, with_bases, with_tables
from aot.client import RegistryClient
from aot.errors import AotError, BundleWithdrawn, NotFound, QualificationFailed
from aot.pipeline.build import Staged, read_staged
from aot.pipeline.source import download
from aot.sandbox import ShouldStop
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Reference, Tag
from aot.schema.recipe import Route
from aot.schema.spec import CommandSource, Spec
from aot.schema.wire.bundles import SignedManifest


def fetch_bases(
    client: RegistryClient, spec: Spec, *, tags: Sequence[Tag], into: Path, should_stop: ShouldStop
) -> tuple[Base, ...]:
    """Return what a union of `spec` has to hold: what the tags stand for now, then what the run had restored.

    Nothing for a capture that is no union. Raises QualificationFailed where that was withdrawn, or a tag stands for
    another program by now: then there is nothing to be joined with.
    """
    source = spec.source
    if not isinstance(source, CommandSource) or source.union_of is None:
        return ()
    found: dict[Digest, Base] = {}
    for place in (*(f":{tag}" for tag in tags), f"@{source.union_of}"):
        for signed in _resolve(client, Reference.parse(f"{spec.namespace}/{spec.name}{place}")):
            manifest = decode_manifest(signed.manifest.encode())
            if manifest.profile.name == spec.profile and signed.digest not in found:
                _require_same_program(manifest, spec, place)
                found[signed.digest] = _fetch(client, signed.digest, manifest, into=into, should_stop=should_stop)
    return tuple(found.values())


def join_again(
    staged: Staged, client: RegistryClient, *, tags: Sequence[Tag], scratch: Path, should_stop: ShouldStop
) -> Staged:
    """Return the proven union joined with what its tags stand for since. Raises as `fetch_bases`.

    Tables whose rows cannot be joined are told of in the report's warnings: the first that went live stays.
    """
    spec = staged.manifest.spec
    bases = fetch_bases(client, spec, tags=tags, into=scratch / "bases", should_stop=should_stop)
    [artifact] = staged.manifest.artifacts
    parts = (*((base.artifact.files, base.paths) for base in bases), (artifact.files, staged.paths))
    tables = join_tables(parts, scratch=scratch / "tables")
    union = with_tables(with_bases(artifact, bases), (entry.as_file() for entry in tables.entries))
    told = (*staged.manifest.compile_report.warnings, *warnings_for(not_joined(unjoined(parts, tables))))
    report = msgspec.structs.replace(staged.manifest.compile_report, warnings=tuple(dict.fromkeys(told)))
    joined = msgspec.structs.replace(staged.manifest, artifacts=(union,), compile_report=report)
    paths = dict(staged.paths)
    for base in bases:
        paths |= base.paths
    paths |= tables.paths
    return read_staged(write_bundle(scratch / "bundle", manifest=joined, files=paths).directory)


def _resolve(client: RegistryClient, reference: Reference) -> tuple[SignedManifest, ...]:
    try:
        return client.resolve(reference)
    except BundleWithdrawn as error:
        raise _cannot_join(f"{error.message}", hint="capture the command again") from error
    except NotFound as error:
        if reference.digest is None:
            return ()  # nothing is lost where the tag stands for nothing
        raise _cannot_join(f"{reference} is gone", hint="capture the command again") from error


def _require_same_program(manifest: Manifest, spec: Spec, place: str) -> None:
    theirs, ours = manifest.spec.source, spec.source
    assert isinstance(ours, CommandSource)
    if not isinstance(theirs, CommandSource) or theirs.tree != ours.tree:
        raise _cannot_join(
            f"{spec.name}{place} stands for another program by now",
            hint="entries of an old tree are not for a new one: run the new one with --write-back",
        )


def _fetch(client: RegistryClient, digest: Digest, manifest: Manifest, *, into: Path, should_stop: ShouldStop) -> Base:
    artifact = next(one for one in manifest.artifacts if one.route is Route.CACHE)
    into.mkdir(parents=True, exist_ok=True)
    links = {link.digest: link for link in client.get_download_links(digest)}
    paths: dict[Digest, Path] = {}
    for blob in manifest.blobs:
        paths[blob.digest] = into / blob.digest.hex
        if not paths[blob.digest].exists():
            download(client, links[blob.digest], blob, paths[blob.digest], should_stop=should_stop)
    return Base(digest, artifact, paths)


def _cannot_join(finding: str, *, hint: str) -> AotError:
    return QualificationFailed(f"the union cannot be joined with what it was loaded from: {finding}", hint=hint)
