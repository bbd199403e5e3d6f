"""Kernels as people look for them: which bundles hold code for a card, what a kernel takes, where its bytes are."""

from sqlalchemy.orm import Session

from aot.errors import InvalidInput
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.state import BundleState
from aot.schema.wire.kernels import KernelListing, KernelView
from registry.db import kernels as rows
from registry.db.models import BundleRow, KernelRow
from registry.services.paging import cursor_of, limit_of, parse_cursor
from registry.services.tokens import Principal

# What the column holds; PostgreSQL refuses to compare with more.
_MOST_POSITION = 1 << 31


def rows_of(bundle: Digest, manifest: Manifest) -> list[KernelRow]:
    """The index of a manifest's kernels, in its order."""
    found = [(index, kernel) for index, artifact in enumerate(manifest.artifacts) for kernel in artifact.binaries]
    blobs = [{file.path: file.digest for file in artifact.files} for artifact in manifest.artifacts]
    return [
        KernelRow(
            bundle=bundle,
            position=position,
            artifact=index,
            name=kernel.name,
            capability=kernel.capability,
            path=kernel.path,
            blob=blobs[index][kernel.path],
            size_bytes=kernel.size_bytes,
            registers=kernel.registers,
            scalar_registers=kernel.scalar_registers,
            shared_bytes=kernel.shared_bytes,
            spill_bytes=kernel.spill_bytes,
        )
        for position, (index, kernel) in enumerate(found)
    ]


def search(
    *,
    text: str | None = None,
    capability: Capability | None = None,
    bundle: Digest | None = None,
    blob: Digest | None = None,
    namespace: Namespace | None = None,
    model: Name | None = None,
    state: BundleState | None = None,
    after: str | None = None,
    limit: int | None = None,
    by: Principal,
    session: Session,
) -> KernelListing:
    """The kernels of bundles that `by` may read and that match everything given. `text`: a part of the name.

    Raises InvalidInput for a limit or an `after` that no listing gave.
    """
    size = limit_of(limit)
    found = rows.search_kernels(
        session,
        where={"capability": capability, "bundle": bundle, "blob": blob}
        | {"namespace": namespace, "name": model, "state": state},
        text=text,
        namespaces=by.namespaces,
        after=_parse_position(after) if after is not None else None,
        limit=size + 1,
    )
    page = found[:size]
    following = None
    if len(found) > size:
        kernel, of = page[-1]
        following = f"{cursor_of(of.created_at, of.digest)}~{kernel.position}"
    return KernelListing(kernels=tuple(_view(kernel, of) for kernel, of in page), next=following)


def _parse_position(text: str) -> rows.Position:
    cursor, _, position = text.rpartition("~")
    if not (position.isascii() and position.isdecimal()) or int(position) >= _MOST_POSITION:
        raise InvalidInput(f"wanted the `next` of a listing, found {text[:120]!r}", hint="pass it on as it was given")
    return (*parse_cursor(cursor), int(position))


def _view(kernel: KernelRow, of: BundleRow) -> KernelView:
    return KernelView(
        name=kernel.name,
        capability=kernel.capability,
        bundle=of.digest,
        namespace=of.namespace,
        model=of.name,
        profile=of.profile,
        state=of.state,
        artifact=kernel.artifact,
        path=kernel.path,
        blob=kernel.blob,
        size_bytes=kernel.size_bytes,
        registers=kernel.registers,
        scalar_registers=kernel.scalar_registers,
        shared_bytes=kernel.shared_bytes,
        spill_bytes=kernel.spill_bytes,
    )
