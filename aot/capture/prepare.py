"""From a reference to a directory of restored entries and the variables that name it: what `aot run` and `aot.warm` do.

observe (as the command will use the host) -> resolve -> verify -> select -> fetch -> restore -> variables
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot.cache import LocalCache
from aot.capture.entries import entry_of
from aot.capture.pins import TAG, effective_environment, key_tag, pins
from aot.capture.record import TAG as TAG_FACT
from aot.capture.restore import place_for, restore
from aot.config import Config
from aot.environment import observe_environment
from aot.errors import AotError, InvalidConfig, LocalStorageFull
from aot.runtime.fetch import Candidate, Resolved, ensure_verified, remember, resolve
from aot.runtime.late_client import LateClient
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.lock import Lock
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from aot.schema.recipe import Route
from aot.select import select
from aot.trust import TrustedKeys


@dataclass(frozen=True)
class Prepared:
    """What a command is to be started with. Without a bundle `changes` is empty, and `reasons` says why."""

    reference: Reference
    environment: Environment  # as the command uses the host
    directory: Path | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    bundle: Digest | None = None
    manifest: Manifest | None = None
    artifact: Artifact | None = None
    reasons: tuple[str, ...] = ()
    stale: bool = False
    failure: AotError | None = None  # what ended it, where something did
    graphs: int = 0
    blobs: Mapping[Digest, Path] = field(default_factory=dict)  # of the artifact, where the node's cache still has them

    @property
    def paths(self) -> frozenset[str]:
        """Of every entry that was restored."""
        return frozenset(file.path for file in self.artifact.files) if self.artifact else frozenset()


def prepare(
    reference: Reference,
    *,
    config: Config,
    environ: Mapping[str, str],
    lock: Lock | None = None,
    command: Sequence[str] = (),
) -> Prepared:
    """Restore what `reference` holds for this host, and return what to start `command` with. Never raises AotError.

    Whatever a registry, a disk or a bundle does, the command can start: what went wrong is a reason. Without a command
    it is for this process.
    """
    effective = effective_environment(observe_environment(), environ, command=command)
    try:
        return _prepare(reference, effective, config=config, environ=environ, lock=lock)
    except AotError as error:
        return Prepared(reference, effective, reasons=(error.as_line,), failure=error)
    except OSError as error:
        return Prepared(
            reference, effective, reasons=(f"{config.cache_dir} cannot be used: {error.strerror or error}",)
        )


def open_registry(config: Config) -> LateClient | None:
    return LateClient(config.url, config) if config.url and not config.offline else None


def _prepare(
    reference: Reference, effective: Environment, *, config: Config, environ: Mapping[str, str], lock: Lock | None
) -> Prepared:
    client, cache = open_registry(config), LocalCache(config.cache_dir, limit_bytes=config.cache_bytes)
    trusted = TrustedKeys.parse(",".join((*config.trusted_keys, *(lock.trusted_keys if lock else ()))))
    resolved = resolve(reference, client=client, cache=cache, trusted=trusted, lock=lock)
    with contextlib.suppress(LocalStorageFull, InvalidConfig):
        # A cache that cannot be written may still hold every blob.
        remember(resolved, cache)
    caches, reasons = _of_caches(resolved, effective)
    selection = select([(one.digest, one.manifest) for one in caches], effective)
    if selection.bundle is None:
        return Prepared(reference, effective, reasons=(*reasons, *selection.reasons), stale=resolved.stale)
    candidate = resolved.candidate(selection.bundle)
    artifact = candidate.manifest.artifacts[selection.artifacts[0]]
    entries = tuple(entry_of(file) for file in artifact.files)
    directory = place_for(config.cache_dir, candidate.digest)
    with cache.hold([candidate.digest, *candidate.digests(selection)]):
        paths = ensure_verified(candidate, selection, client=client, cache=cache)
        restore(entries, paths, into=directory)
    return Prepared(
        reference,
        effective,
        directory,
        pins(effective, directory, environ, recorded=artifact.facts),
        candidate.digest,
        candidate.manifest,
        artifact,
        (*reasons, *selection.reasons),
        resolved.stale,
        graphs=len({entry.graph for entry in entries} - {None}),
        blobs=paths,
    )


def _of_caches(resolved: Resolved, effective: Environment) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the bundles of caches whose entries torch would find under the tag of this host, and why not the others.

    The guard `isa` refuses another vector width; the tag, every other instruction set that Inductor generates for.
    """
    kept, reasons, tag = [], [], key_tag(effective)
    for one in resolved.candidates:
        own = next((artifact for artifact in one.manifest.artifacts if artifact.route is Route.CACHE), None)
        if own is None:
            reasons.append(f"{one.digest.short} holds no compiler caches; `aot.load` is for it")
        elif own.facts.get(TAG_FACT) == tag or _judged_by_guards(own, effective):
            kept.append(one)
        else:
            text = f"its entries are keyed for {own.facts.get(TAG_FACT, 'no CPU')} ({TAG}), this host needs {tag}"
            reasons.append(f"{one.digest.short}: {text}")
    return kept, tuple(reasons)


def _judged_by_guards(artifact: Artifact, effective: Environment) -> bool:
    """Whether a guard says it better: another vector width or another Python is a guard of its own."""
    values = {guard.kind: guard.value for guard in artifact.host_guards}
    cpu, python = effective.node.cpu, ".".join((effective.container.python or "").split(".")[:2])
    return values.get("isa") != (cpu.target if cpu else None) or values.get("python") != python
