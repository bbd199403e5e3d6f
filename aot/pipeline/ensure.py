"""Ensure: the CI step. Every model of a project has a bundle for every profile, and a lock pins them.

Idempotent: where everything is there, one request is made and nothing is written.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from aot.client import RegistryClient
from aot.errors import AotError, BundleWithdrawn, InvalidSource, InvalidSpec, NotFound
from aot.pipeline.limits import fitting
from aot.pipeline.lockfile import check_place, write_lock
from aot.pipeline.source import PackedSource, pack_command, pack_factory, pack_program
from aot.recipes import check_recipe
from aot.runtime.fetch import verify_signed
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Reference
from aot.schema.project import ModelEntry, Project
from aot.schema.spec import CommandSource, Spec
from aot.schema.wire.builds import BuildView
from aot.schema.wire.bundles import FindTarget, SignedManifest
from aot.source import find_commit
from aot.trust import TrustedKeys


class Ensured(StrEnum):
    PRESENT = "present"
    BUILT = "built"


@dataclass(frozen=True)
class Target:
    """One model on one profile under one tag, and what came of it."""

    reference: Reference
    profile: Name
    outcome: Ensured
    bundle: Digest
    entry: LockEntry


Wait = Callable[[], BuildView]
Start = Callable[[ModelEntry, Spec, PackedSource], Wait]
"""Begin a build of what is missing, on a worker or here, and return how to wait for the published build."""


@dataclass(frozen=True)
class Missed:
    """One model on one profile that has no bundle, and why."""

    model: ModelEntry
    spec: Spec
    error: AotError


@dataclass(frozen=True)
class _Asked:
    """One model on one profile, what the registry has for it, and the build on its way where it has nothing.

    `error`: why none could be begun.
    """

    model: ModelEntry
    spec: Spec
    answer: FindTarget
    wait: Wait | None = None
    error: AotError | None = None


def ensure_project(
    client: RegistryClient,
    project: Project,
    *,
    root: Path,
    lock_path: Path,
    trusted: TrustedKeys,
    start: Start,
    ci_commit: str | None = None,
    on_target: Callable[[Target], None] = lambda target: None,
    on_missed: Callable[[Missed], None] = lambda missed: None,
) -> tuple[Target, ...]:
    """Return every target, all present, and write the lock where it changed.

    `root` is where the project's paths begin, `ci_commit` what CI says was checked out, for where git cannot tell. All
    missing builds are begun before the first is waited for, so that several workers share them. Where one cannot be
    begun, fails or is signed by nobody who is trusted, `on_missed` is told at once, the others go on to their end, the
    lock stays as it was, and the first such error is raised: what `start` and its `Wait` raise, and SignatureRejected.
    Raises InvalidSource for a source that cannot be packed, InvalidInput for a lock that cannot be written, InvalidSpec
    for a recipe that no worker can follow.
    """
    check_place(lock_path)
    for model in project.models:
        _check_recipe(model)
    targets: list[Target] = []
    missed: list[Missed] = []
    with tempfile.TemporaryDirectory(prefix="aot-ensure-") as scratch:
        for asked in _ask(client, project, root=root, scratch=Path(scratch), start=start, ci_commit=ci_commit):
            try:
                found = _ensure(client, asked, trusted=trusted)
            except AotError as error:
                missed.append(Missed(asked.model, asked.spec, error))
                on_missed(missed[-1])
                continue
            for target in found:
                on_target(target)
            targets += found
    if missed:
        raise missed[0].error
    entries = tuple(target.entry for target in targets)
    write_lock(lock_path, Lock(entries=entries, trusted_keys=tuple(str(key) for key in trusted)))
    return tuple(targets)


def _ask(
    client: RegistryClient, project: Project, *, root: Path, scratch: Path, start: Start, ci_commit: str | None
) -> list[_Asked]:
    """Pack every source, ask for all targets in one request, and begin what is missing."""
    wanted = []
    for number, model in enumerate(project.models):
        packed = _pack(model, root, scratch / str(number))
        wanted += [(model, packed, _spec(project, model, packed, profile)) for profile in model.profiles]
    answers = client.find([spec for _, _, spec in wanted])
    asked = []
    for (model, packed, spec), answer in zip(wanted, answers, strict=True):
        if answer.bundle is not None:
            asked.append(_Asked(model, spec, answer))
            continue
        # Git is asked only where something is built: a run that finds everything stays as quick as it was.
        commit = find_commit(_place(model, root), ci=ci_commit)
        try:
            asked.append(_Asked(model, spec, answer, wait=start(model, replace(spec, commit=commit), packed)))
        except AotError as error:
            asked.append(_Asked(model, spec, answer, error=error))
    return asked


def _ensure(client: RegistryClient, asked: _Asked, *, trusted: TrustedKeys) -> list[Target]:
    """Wait for what is missing, verify, and let every tag stand where the project says."""
    spec = asked.spec
    outcome, signed = Ensured.PRESENT, asked.answer.bundle
    if asked.error is not None:
        raise asked.error
    if signed is None:
        assert asked.wait is not None
        outcome, signed = Ensured.BUILT, _built(client, spec, asked.wait())
    references = [Reference.parse(f"{spec.namespace}/{spec.name}:{tag}") for tag in asked.model.tags]
    manifest = verify_signed(signed, references[0], trusted, build_key=asked.answer.build_key)
    entries = [_let_stand(client, reference, signed, manifest, trusted=trusted) for reference in references]
    return [Target(entry.reference, entry.profile, outcome, entry.bundle, entry) for entry in entries]


def _let_stand(
    client: RegistryClient, reference: Reference, signed: SignedManifest, manifest: Manifest, *, trusted: TrustedKeys
) -> LockEntry:
    """Let the tag stand for the bundle, or for the union that it has grown to: runs write back what they compile."""
    digest = signed.digest
    if reference.tag not in signed.tags:
        grown = _find_grown(client, reference, manifest, trusted=trusted)
        if grown is None:
            client.tag(reference, digest)
        else:
            digest, manifest = grown
    return LockEntry(
        reference=reference,
        profile=manifest.profile.name,
        bundle=digest,
        build_key=manifest.build_key,
        factors=manifest.factors,
        frozen=manifest.frozen,
    )


def _find_grown(
    client: RegistryClient, reference: Reference, capture: Manifest, *, trusted: TrustedKeys
) -> tuple[Digest, Manifest] | None:
    """The union that the tag stands for, where it holds every entry of `capture` and is of the same tree."""
    source = capture.spec.source
    if not isinstance(source, CommandSource):
        return None
    try:
        found = client.resolve(reference)
    except (NotFound, BundleWithdrawn):
        return None
    wanted = {file.path for file in capture.files}
    for signed in found:
        manifest = verify_signed(signed, reference, trusted)
        theirs = manifest.spec.source
        same = isinstance(theirs, CommandSource) and theirs.union_of is not None and theirs.tree == source.tree
        if same and manifest.profile.name == capture.profile.name and wanted <= {file.path for file in manifest.files}:
            return signed.digest, manifest
    return None


def _built(client: RegistryClient, spec: Spec, view: BuildView) -> SignedManifest:
    pinned = Reference(f"{spec.namespace}/{spec.name}@{view.bundle}")
    return client.resolve(pinned)[0]


def _check_recipe(model: ModelEntry) -> None:
    """Before anything is packed. Raises InvalidSpec with the model's name."""
    if model.command:
        return  # it compiles as it likes: there is nothing to follow
    try:
        check_recipe(model.recipe)
    except InvalidSpec as error:
        raise InvalidSpec(f"model {model.name}: {error.message}", hint=error.hint) from error


def _pack(model: ModelEntry, root: Path, into: Path) -> PackedSource:
    weights = [root / path for path in model.weights]
    place = _place(model, root)
    missing = [path for path in (place, *weights) if not path.exists()]
    if missing:
        raise InvalidSource(f"model {model.name}: {missing[0]} does not exist", hint="paths are relative to aot.toml")
    if model.program is not None:
        return pack_program(place, into=into, requirements=model.requirements, weights=weights)
    if model.command:
        return pack_command(place, model.command, into=into, requirements=model.requirements)
    assert model.entry is not None
    return pack_factory(place, model.entry, into=into, requirements=model.requirements, weights=weights)


def _place(model: ModelEntry, root: Path) -> Path:
    return root / model.source if model.program is None else root / model.program


def _spec(project: Project, model: ModelEntry, packed: PackedSource, profile: Name) -> Spec:
    return Spec(
        namespace=project.namespace,
        name=model.name,
        source=packed.source,
        profile=profile,
        recipe=model.asked_recipe,
        weights=packed.weights,
        limits=fitting(model.limits, packed, freeze=model.asked_recipe.freeze),
    )
