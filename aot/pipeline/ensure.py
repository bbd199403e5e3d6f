"""Ensure: the CI step. Every model of a project has a bundle for every profile, and a lock pins them.

Idempotent: where everything is there, one request is made and nothing is written.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aot.client import RegistryClient
from aot.errors import InvalidSource
from aot.pipeline.source import PackedSource, pack_factory, pack_program
from aot.runtime.fetch import verify_signed
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.names import Name, Reference
from aot.schema.project import ModelEntry, Project
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView
from aot.schema.wire.bundles import FindTarget
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


Build = Callable[[ModelEntry, Spec, PackedSource], BuildView]
"""Build what is missing, on a worker or here, and return the published build."""


def ensure_project(
    client: RegistryClient,
    project: Project,
    *,
    root: Path,
    lock_path: Path,
    trusted: TrustedKeys,
    trusted_lines: Sequence[str],
    build: Build,
    on_target: Callable[[Target], None] = lambda target: None,
) -> tuple[Target, ...]:
    """Return every target, all present, and write the lock where it changed.

    `root` is where the project's paths begin. Raises what `build` raises, SignatureRejected for a bundle that no
    trusted key has signed, InvalidSource for a source that cannot be packed.
    """
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="aot-ensure-") as scratch:
        packed = [
            (model, _pack(model, root, Path(scratch) / str(number))) for number, model in enumerate(project.models)
        ]
        asked = [
            (model, source, _spec(project, model, source, profile))
            for model, source in packed
            for profile in model.profiles
        ]
        answers = client.find([spec for _, _, spec in asked])
        for (model, source, spec), answer in zip(asked, answers, strict=True):
            new = _ensure(client, model, spec, source, answer, trusted=trusted, build=build)
            for target in new:
                on_target(target)
            targets += new
    write_lock(lock_path, targets, trusted_lines)
    return tuple(targets)


def write_lock(path: Path, targets: Sequence[Target], trusted: Sequence[str]) -> bool:
    """Write the lock by rename, unless it says the same already. Returns whether it was written."""
    content = encode_lock(Lock(entries=tuple(target.entry for target in targets), trusted_keys=tuple(trusted)))
    if path.exists() and path.read_bytes() == content:
        return False
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
    return True


def _ensure(
    client: RegistryClient,
    model: ModelEntry,
    spec: Spec,
    source: PackedSource,
    answer: FindTarget,
    *,
    trusted: TrustedKeys,
    build: Build,
) -> list[Target]:
    outcome, signed = Ensured.PRESENT, answer.bundle
    if signed is None:
        view = build(model, spec, source)
        pinned = Reference(f"{spec.namespace}/{spec.name}@{view.bundle}")
        outcome, signed = Ensured.BUILT, client.resolve(pinned)[0]
    references = [Reference.parse(f"{spec.namespace}/{spec.name}:{tag}") for tag in model.tags]
    manifest = verify_signed(signed, references[0], trusted, build_key=answer.build_key)
    for reference in references:
        if reference.tag is not None and reference.tag not in signed.tags:
            client.tag(reference, signed.digest)
    return [
        Target(
            reference,
            spec.profile,
            outcome,
            signed.digest,
            LockEntry(
                reference=reference,
                profile=spec.profile,
                bundle=signed.digest,
                build_key=manifest.build_key,
                factors=manifest.factors,
                frozen=manifest.frozen,
            ),
        )
        for reference in references
    ]


def _pack(model: ModelEntry, root: Path, into: Path) -> PackedSource:
    weights = [root / path for path in model.weights]
    missing = [path for path in (root / model.source, *weights) if not path.exists()]
    if missing:
        raise InvalidSource(f"model {model.name}: {missing[0]} does not exist", hint="paths are relative to aot.toml")
    if model.program is not None:
        return pack_program(root / model.program, into=into, requirements=model.requirements, weights=weights)
    assert model.entry is not None
    return pack_factory(root / model.source, model.entry, into=into, requirements=model.requirements, weights=weights)


def _spec(project: Project, model: ModelEntry, packed: PackedSource, profile: Name) -> Spec:
    return Spec(
        namespace=project.namespace,
        name=model.name,
        source=packed.source,
        profile=profile,
        recipe=model.recipe,
        weights=packed.weights,
        limits=model.limits,
    )
