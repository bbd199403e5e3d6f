"""Bytecode of what is installed: a bundle of it here, the same again on a worker as its proof, and a tree on the node.

    installed distributions -> one archive each -> bundle -> push: pending
    worker: the same distributions -> the same bytes? -> live
    pod: select -> verified archives -> a directory for PYTHONPYCACHEPREFIX

No source travels: whoever has the distributions can make the bytes again, and that they are equal is the proof.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot.bundle import blob_of, write_bundle
from aot.bundle.assemble import assemble
from aot.bytecode import (
    Archive,
    Installed,
    Tree,
    compile_distribution,
    count_own,
    ensure_tree,
    find_installed,
    list_installed,
    read_archive,
    spell_interpreter,
)
from aot.cache import LocalCache
from aot.config import Config
from aot.errors import InvalidConfig, InvalidInput, InvalidSpec, LocalStorageFull, QualificationFailed
from aot.keys import factors_of, fingerprint_of
from aot.pipeline.build import Staged, provenance_of, read_staged
from aot.proof import REBUILT
from aot.runtime.fetch import Candidate, ensure_verified, remember, resolve
from aot.runtime.late_client import LateClient
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.environment import ContainerFacts, Environment
from aot.schema.guard import HostGuard
from aot.schema.lock import Lock
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace, Reference
from aot.schema.profile import Profile
from aot.schema.recipe import Mode, Recipe, Route
from aot.schema.report import CompileReport, Qualification
from aot.schema.spec import BytecodeSource, Distribution, File, Spec
from aot.select import select
from aot.trust import TrustedKeys

BYTECODE_RECIPE = Recipe(mode=Mode.DEFAULT, routes=(Route.BYTECODE,))
TREES = "bytecode"


def choose_modules(
    names: Sequence[str], *, command: Sequence[str] = (), environ: Mapping[str, str]
) -> tuple[Distribution, ...]:
    """Return the distributions to compile, each with its modules: all of them, or those that `command` imports.

    `command` runs once, with `environ`, what it says going to stderr; without names, every distribution counts that it
    imports something of. Raises InvalidInput for a distribution that cannot be told by a RECORD, and for a command
    that fails or imports nothing.
    """
    if not names and not command:
        raise InvalidInput("nothing to compile was named", hint="give --distribution, or a command behind --")
    known = tuple(_find(name) for name in names) if names else tuple(list_installed())
    if not command:
        return tuple(_as_distribution(one, one.files) for one in known)
    imported = modules_of(command, environ=environ)
    chosen = []
    for one in known:
        files = tuple(path for path in one.files if f"{one.root}/{path}" in imported)
        if files:
            chosen.append(_as_distribution(one, files))
    if not chosen:
        raise InvalidInput(
            f"{command[0]} imports no module of {', '.join(names) or 'any distribution'} from its source",
            hint="let it import what it needs, under the interpreter that runs this command",
        )
    return tuple(chosen)


def modules_of(command: Sequence[str], *, environ: Mapping[str, str]) -> frozenset[str]:
    """Run `command` and return the source of every module that it, and each Python it starts, imports.

    Read from what interpreters leave below a prefix of their own. Raises InvalidInput where it does not end well.
    """
    kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    suffix = f".{spell_interpreter().partition(' ')[0]}"
    with tempfile.TemporaryDirectory(prefix="aot-modules-") as prefix:
        try:
            ended = subprocess.run([*command], env={**kept, "PYTHONPYCACHEPREFIX": prefix}, stdout=2, check=False)
        except OSError as error:
            raise InvalidInput(
                f"{command[0]} cannot be run: {error.strerror}", hint="name a program on PATH"
            ) from error
        if ended.returncode != 0:
            raise InvalidInput(f"{command[0]} ended with {ended.returncode}", hint="run it by itself first")
        return frozenset(
            f"/{os.path.relpath(os.path.join(place, name.partition(suffix)[0]), prefix)}.py"
            for place, _, files in os.walk(prefix)
            for name in files
            if suffix in name
        )


def bytecode_spec(distributions: Sequence[Distribution], profile: Name, *, namespace: Namespace, name: Name) -> Spec:
    ordered = tuple(sorted(distributions, key=lambda one: one.name))
    source = BytecodeSource(interpreter=spell_interpreter(), distributions=ordered)
    return Spec(namespace=namespace, name=name, source=source, profile=profile, recipe=BYTECODE_RECIPE)


def build_bytecode(spec: Spec, profile: Profile, *, scratch: Path, builder: str) -> Staged:
    """Compile every distribution of the spec, and stage the bundle below `scratch`: pending until it was made again.

    Raises InvalidSpec where this interpreter or what is installed here is not what the spec names, BackendFailed.
    """
    made = _make(spec, profile, into=scratch / "archives")
    left_out = tuple(f"{name}: {path} does not compile" for name, paths in made.left_out.items() for path in paths)
    manifest = assemble(
        spec,
        profile,
        fingerprint=fingerprint_of(factors_of(spec, profile)),
        artifacts=made.artifacts,
        qualification=Qualification(),
        compile_report=CompileReport(toolchain={"python": profile.toolchain.python}, warnings=left_out),
        provenance=provenance_of(spec, builder=builder),
    )
    return read_staged(write_bundle(scratch / "bundle", manifest=manifest, files=made.paths).directory)


def rebuild_bytecode(pushed: Manifest, *, scratch: Path, builder: str) -> Staged:
    """Prove a pushed bundle: compile the same sources here. Raises QualificationFailed where the bytes are others."""
    try:
        made = _make(pushed.spec, pushed.profile, into=scratch / "archives")
    except InvalidSpec as error:
        raise QualificationFailed(
            f"the bytecode cannot be made again on this worker: {error.message}",
            hint="push it for a profile whose workers have what it was compiled from",
        ) from error
    differing = [before.region for before, now in zip(pushed.artifacts, made.artifacts, strict=False) if before != now]
    if differing or len(pushed.artifacts) != len(made.artifacts):
        raise QualificationFailed(
            f"the pushed bytecode is not what its sources compile to: {', '.join(differing) or 'other distributions'}",
            hint="build it again where the distributions are as they were installed",
            details={"differences": differing},
        )
    proven = msgspec.structs.replace(
        pushed,
        qualification=Qualification(
            numerics=REBUILT, profile=pushed.profile.name, torch=pushed.profile.toolchain.torch
        ),
        provenance=msgspec.structs.replace(
            pushed.provenance, builder=f"{pushed.provenance.builder}, made again by {builder}"
        ),
    )
    return read_staged(write_bundle(scratch / "bundle", manifest=proven, files=made.paths).directory)


@dataclass(frozen=True)
class Restored:
    """`tree` is None where nothing fits. `names` are the distributions in it; `reasons` say why others are not."""

    bundle: Digest | None
    tree: Tree | None
    names: tuple[str, ...]
    reasons: tuple[str, ...]
    stale: bool = False


def restore_bytecode(reference: Reference, *, config: Config, lock: Lock | None = None) -> Restored:
    """Make true that this node has a tree of what `reference` holds for this very interpreter and its distributions.

    Verified before it is written: signature, digests, and that all of it is compared with its source when imported.
    Raises what resolving and fetching raise, InvalidSource, LocalStorageFull, InvalidConfig; a misfit is a value.
    """
    client = LateClient(config.url, config) if config.url and not config.offline else None
    cache = LocalCache(config.cache_dir, limit_bytes=config.cache_bytes)
    trusted = TrustedKeys.parse(",".join((*config.trusted_keys, *(lock.trusted_keys if lock else ()))))
    resolved = resolve(reference, client=client, cache=cache, trusted=trusted, lock=lock)
    with contextlib.suppress(LocalStorageFull, InvalidConfig):
        # A cache that cannot be written may still hold every blob, and the tree.
        remember(resolved, cache)
    wanted = {one.region for _, manifest in resolved.bundles for one in manifest.artifacts if _holds_bytecode(one)}
    here = {one.name: one for name in sorted(wanted) if (one := find_installed(name))}
    selection = select(resolved.bundles, observe_bytecode(here.values()))
    if selection.bundle is None:
        return Restored(None, None, (), selection.reasons, resolved.stale)
    candidate = resolved.candidate(selection.bundle)
    with cache.hold([candidate.digest, *candidate.digests(selection)]):
        paths = ensure_verified(candidate, selection, client=client, cache=cache)
        archives = tuple(_archives(candidate, selection, here, paths))
        count = sum(len(archive.members) for archive in archives)
        if 2 * (own := count_own(archives, spell_interpreter())) > count:
            needless = (
                f"this image has bytecode of {own} of the {count} modules beside their sources: nothing to restore"
            )
            return Restored(candidate.digest, None, (), (needless, *selection.reasons), resolved.stale)
        tree = ensure_tree(config.cache_dir / TREES, spell_interpreter(), archives)
    names = tuple(candidate.manifest.artifacts[index].region for index in selection.artifacts)
    return Restored(candidate.digest, tree, names, selection.reasons, resolved.stale)


def observe_bytecode(installed: Iterable[Installed]) -> Environment:
    """Return the facts that decide on bytecode, of this interpreter."""
    guards = tuple(sorted(one.guard for one in installed))
    return Environment(container=ContainerFacts(bytecode=spell_interpreter(), distributions=guards))


@dataclass(frozen=True)
class _Made:
    artifacts: tuple[Artifact, ...]
    paths: Mapping[Digest, Path]
    left_out: Mapping[str, tuple[str, ...]]


def _make(spec: Spec, profile: Profile, *, into: Path) -> _Made:
    source = spec.source
    if not isinstance(source, BytecodeSource):
        raise InvalidSpec("wanted a source of distributions", hint="`aot bytecode build` makes such a spec")
    if source.interpreter != (here := spell_interpreter()):
        raise InvalidSpec(f"the bytecode is of {source.interpreter}, this interpreter is {here}")
    artifacts, paths, left_out = [], {}, {}
    for one in source.distributions:
        installed = find_installed(one.name)
        if installed is None or installed.guard != one.guard:
            found = installed.guard if installed else f"no {one.name} with a RECORD"
            raise InvalidSpec(f"the bytecode is of {one.guard}, here is {found}", hint=f"install {one.guard}")
        archive = into / f"{one.name}.tar"
        left_out[one.name] = compile_distribution(installed, one.files, into=archive)
        blob = blob_of(archive)
        paths[blob.digest] = archive
        file = File(path=f"bytecode/{one.name}.tar", digest=blob.digest, size_bytes=blob.size_bytes)
        artifacts.append(_artifact(one, file, profile, source.interpreter))
    return _Made(tuple(artifacts), paths, left_out)


def _artifact(one: Distribution, file: File, profile: Profile, interpreter: str) -> Artifact:
    return Artifact(
        region=one.name,
        instances=(),
        route=Route.BYTECODE,
        capability=profile.capability,
        coverage=Coverage(kind=CoverageKind.EXACT),
        files=(file,),
        host_guards=(
            HostGuard(kind="bytecode", value=interpreter),
            HostGuard(kind="distribution", value=one.guard),
        ),
        facts={"modules": str(len(one.files))},
    )


def _archives(
    candidate: Candidate, selection: Selection, here: Mapping[str, Installed], paths: Mapping[Digest, Path]
) -> Iterable[Archive]:
    for index in selection.artifacts:
        artifact = candidate.manifest.artifacts[index]
        if _holds_bytecode(artifact):
            [file] = artifact.files
            members = read_archive(paths[file.digest], spell_interpreter())
            yield Archive(here[artifact.region].root, file.digest, members)


def _holds_bytecode(artifact: Artifact) -> bool:
    return artifact.route is Route.BYTECODE and len(artifact.files) == 1


def _find(name: str) -> Installed:
    found = find_installed(name)
    if found is None:
        raise InvalidInput(
            f"{name} is not installed, or has no RECORD with the hashes of its modules",
            hint="install it from a wheel; an editable install can change at any time",
        )
    return found


def _as_distribution(one: Installed, files: Sequence[str]) -> Distribution:
    return Distribution(name=one.name, version=one.version, record=one.record, files=tuple(files))
