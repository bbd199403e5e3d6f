"""`aot inspect`, `verify`, `push`: bundles on disk, which `aot pull --as-bundle` and `aot build --here` write."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aot.bundle import StoredBundle, read_bundle, verify_bundle
from aot.bundle.form import MANIFEST
from aot.cli.bundles import manifest_lines, signers
from aot.client import RegistryClient
from aot.errors import IntegrityFailed, InvalidInput, MalformedDocument, SignatureRejected
from aot.pipeline import push_bundle
from aot.pipeline.build import read_staged
from aot.pipeline.source import pack_again
from aot.schema.manifest import Manifest
from aot.schema.names import Reference, Tag
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply
from aot.trust import TrustedKeys

HINT = "fetch or build the bundle again; do not load this one"


def inspect(directory: Path) -> tuple[Manifest, list[str]]:
    """Read the manifest of a bundle on disk; its blobs are not looked at.

    Raises InvalidInput for a directory without one, as a node's cache is: it is no bundle at all. IntegrityFailed for a
    damaged one.
    """
    _require_directory(directory)
    if not os.path.lexists(directory / MANIFEST):
        raise InvalidInput(
            f"{directory} holds no bundle: {MANIFEST} is missing",
            hint="name the directory that `aot build --as-bundle` or `aot pull --as-bundle` wrote",
        )
    try:
        stored = read_bundle(directory)
    except MalformedDocument as error:
        where = "" if str(directory) in error.message else f"{directory}: "
        raise IntegrityFailed(f"{where}{error.message}", hint=HINT, details=error.details) from error
    lines = manifest_lines(stored.manifest, stored.digest)
    return stored.manifest, [*lines, f"signed by  {signers(stored.envelope)} (`aot verify` checks it)"]


def verify(directory: Path, trusted: TrustedKeys, *, reference: str | None) -> StoredBundle:
    """Return the bundle: whole, signed by a trusted key, and the one that `reference` names where it is given.

    Raises IntegrityFailed with every violation, SignatureRejected for another bundle than the one wanted, InvalidInput
    for what is none: a node's cache.
    """
    stored = _require_whole(directory, trusted)
    if reference is not None:
        wanted, manifest = Reference.parse(reference), stored.manifest
        found = Reference(f"{manifest.namespace}/{manifest.name}@{stored.digest}")
        if wanted.pinned_to(wanted.digest or stored.digest) != found:
            raise SignatureRejected(f"{directory} is {found}, wanted {reference}", hint="it is another bundle")
    return stored


def push(
    client: RegistryClient,
    directory: Path,
    *,
    tags: Sequence[str],
    source: Path | None = None,
    weights: Sequence[Path] = (),
) -> PublishReply:
    """Upload a whole bundle, and of its source what the registry lacks.

    Raises IntegrityFailed; InvalidSource for another source than it was built from; BlobMissing for one that neither
    the registry has nor `source` is.
    """
    moved = tuple(map(Tag.parse, tags))
    _require_whole(directory, None)
    staged = read_staged(directory)
    if missing := [path for path in (source, *weights) if path is not None and not path.exists()]:
        raise InvalidInput(f"{missing[0]} does not exist", hint="--source takes a directory, or a .pt2 file")
    with tempfile.TemporaryDirectory(prefix="aot-push-") as scratch:
        packed = pack_again(staged.manifest.spec, into=Path(scratch), source=source, weights=weights)
        return push_bundle(client, staged, tags=moved, source=packed)


def pushed_line(reply: PublishReply) -> str:
    """What became of a pushed bundle, and the build that is to be waited for."""
    if reply.state is BundleState.PENDING:
        return f"{reply.bundle} {reply.state}, proven again by build {reply.build}"
    return f"{reply.bundle} {reply.state} already"


def _require_whole(directory: Path, trusted: TrustedKeys | None) -> StoredBundle:
    _require_directory(directory)
    violations = verify_bundle(directory, trusted)
    if violations:
        raise IntegrityFailed(
            f"{directory} has {len(violations)} violation(s): {violations[0].text}",
            hint=HINT,
            details={"violations": [f"{violation.path}: {violation.text}" for violation in violations]},
        )
    return read_bundle(directory)


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise InvalidInput(
            f"{directory} is no directory", hint="`aot pull REFERENCE --as-bundle DIR` writes a bundle to one"
        )
    if _is_cache(directory):
        bundles = sum(1 for _ in (directory / "manifests").glob("*.json"))
        raise InvalidInput(
            f"{directory} is a node's cache, with manifests of {bundles} bundle(s), and no bundle",
            hint="`aot pull REFERENCE --as-bundle DIR` writes one bundle to a directory of its own; what a cache holds "
            "is hashed, and its signature checked, at every load",
        )


def _is_cache(directory: Path) -> bool:
    """Whether it is laid out as `aot.cache` does it, and as no bundle is."""
    return (directory / "manifests").is_dir() and not os.path.lexists(directory / MANIFEST)
