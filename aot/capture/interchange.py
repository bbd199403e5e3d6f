"""Mega-Cache files as bundles of the route `cache`, and back: the same entries under torch's names and under ours.

An imported file says nothing of where it was made, so its importer does: on the machine and with the variables of the
process that saved it. It never says more than that: entries whose key does not contain the CPU are marked so, and
`aot run` leaves them alone; they can be exported again, for `torch.compiler.load_cache_artifacts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.bundle import write_bundle
from aot.bundle.assemble import assemble
from aot.capture.bundled import refilled
from aot.capture.collect import MARK, Collected, collect, list_paths
from aot.capture.entries import Kind, kind_of
from aot.capture.kernels import Kernels, kernels_of
from aot.capture.megacache import Saved, SavedKind, entry_at, join, place_of, split
from aot.capture.pins import TAG, key_tag
from aot.capture.record import COLD, artifact_of, capture_recipe, command_source
from aot.capture.record import TAG as TAG_FACT
from aot.errors import InvalidInput
from aot.keys import factors_of, fingerprint_of
from aot.pipeline.build import Staged, provenance_of, read_staged
from aot.schema.artifact import Artifact
from aot.schema.environment import Environment
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Qualification
from aot.schema.spec import Blob, File, Spec

ROOT = "inductor/"
CODE_STATE = "code_state:"  # a fact: the key that torch knows a file of this path by, which its name does not tell


@dataclass(frozen=True)
class Exported:
    """A Mega-Cache file, how many entries of each kind it has, and the files of the bundle that have no place in it."""

    content: bytes
    counts: Mapping[str, int]
    left_out: tuple[str, ...]


def lay_out(content: bytes, into: Path) -> tuple[Saved, ...]:
    """Write every entry of a Mega-Cache file where a capture would have found it. Raises MalformedDocument."""
    entries = split(content)
    for entry in entries:
        place = into / ROOT / place_of(entry)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(entry.content)
    return entries


def import_saved(
    content: bytes,
    *,
    namespace: Namespace,
    name: Name,
    profile: Profile,
    effective: Environment,
    environ: Mapping[str, str],
    command: Sequence[str],
    tree: Blob | None,
    scratch: Path,
    builder: str,
) -> Staged:
    """Stage a bundle with the entries of a Mega-Cache file, each a blob.

    `effective` and `environ` are those of the process that saved it; `command` is what a worker runs to prove that
    they are found, in `tree`. Raises MalformedDocument, and InvalidInput for a file without compiled graphs.
    """
    saved = lay_out(content, scratch / "caches")
    if all(entry.kind is not SavedKind.INDUCTOR for entry in saved):
        raise InvalidInput("the Mega-Cache file holds no compiled graph", hint="save it after the first call")
    caches = scratch / "caches"
    collected = collect(caches, scratch=scratch / "entries", as_found=list_paths(caches))
    artifact = artifact_of(collected, profile, effective, environ=environ, seconds=(0.0, None), recorded={})
    artifact = msgspec.structs.replace(artifact, facts={**_facts(artifact, effective, environ), **_keys(saved)})
    return _stage(
        Spec(
            namespace=namespace,
            name=name,
            source=command_source(command, collected.entries, tree),
            profile=profile.name,
            recipe=capture_recipe(environ),
        ),
        profile,
        artifact,
        collected,
        scratch=scratch,
        builder=builder,
    )


def export_saved(artifacts: Sequence[Artifact], read: Callable[[File], bytes]) -> Exported:
    """Return what torch can load of these artifacts; `read` gives a file's verified bytes.

    Graphs get the files of their kernels back into them, which a capture keeps beside them.
    Raises InvalidInput where there is no compiled graph among them, MalformedDocument for a path that no cache has.
    """
    entries: list[Saved] = []
    left_out: list[str] = []
    for artifact in artifacts:
        files = {file.path: file for file in artifact.files if artifact.route is Route.CACHE}
        kernels, within = kernels_of(files, ()), set[str]()
        for path in filter(_is_ours, files):
            content, used = _filled(path, files, kernels, read)
            key = artifact.facts.get(f"{CODE_STATE}{path}", "")
            entry = entry_at(path.removeprefix(ROOT), content, code_state_key=key)
            if entry is not None:
                entries.append(entry)
                within |= {path, *used}
        left_out.extend(path for path in files if path not in within)
    if all(entry.kind is not SavedKind.INDUCTOR for entry in entries):
        raise InvalidInput(
            "the bundle holds no entry of Inductor's cache", hint="export a bundle of `aot capture` or `aot import`"
        )
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.kind.value] = counts.get(entry.kind.value, 0) + 1
    return Exported(join(entries), counts, tuple(left_out))


def _stage(
    spec: Spec, profile: Profile, artifact: Artifact, collected: Collected, *, scratch: Path, builder: str
) -> Staged:
    manifest = assemble(
        spec,
        profile,
        fingerprint=fingerprint_of(factors_of(spec, profile)),
        artifacts=(artifact,),
        qualification=Qualification(),
        compile_report=CompileReport(toolchain={"torch": profile.toolchain.torch}),
        provenance=provenance_of(spec, builder=builder),
    )
    return read_staged(write_bundle(scratch / "bundle", manifest=manifest, files=collected.paths).directory)


def _facts(artifact: Artifact, effective: Environment, environ: Mapping[str, str]) -> dict[str, str]:
    """The artifact's facts, the tag only where the process that saved the file had it: it is part of every key."""
    tagged = environ.get(TAG, "").endswith(key_tag(effective))
    unknown = {COLD} if tagged else {COLD, TAG_FACT}  # nobody has seen the run that filled the cache
    return {name: value for name, value in artifact.facts.items() if name not in unknown}


def _keys(saved: Sequence[Saved]) -> dict[str, str]:
    return {f"{CODE_STATE}{ROOT}{place_of(entry)}": entry.key for entry in saved if entry.kind is SavedKind.PGO}


def _filled(
    path: str, files: Mapping[str, File], kernels: Kernels, read: Callable[[File], bytes]
) -> tuple[bytes, frozenset[str]]:
    """Return the content of an entry as torch has it, and the other files that are in it."""
    content = read(files[path])
    if kind_of(path) not in (Kind.FXGRAPH, Kind.AOT_AUTOGRAD):
        return content, frozenset()
    return refilled(content, path, kernels=kernels, read_file=lambda place: read(files[place]), mark=MARK)


def _is_ours(path: str) -> bool:
    return path.startswith(ROOT)
