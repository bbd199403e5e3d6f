"""Kernels as people look for them: which bundles hold code for a card, what a kernel takes, where its bytes are."""

from sqlalchemy.orm import Session

from aot.errors import InvalidDigest, InvalidInput
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Namespace
from aot.schema.state import BundleState
from aot.schema.wire.kernels import KernelListing, KernelView
from registry.db import kernels as rows
from registry.db.models import BundleRow, KernelRow
from registry.db.types import HEAD_CHARACTERS
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
    """The kernels of bundles that `by` may read and that match everything given.

    `text`: how the name begins; with it they are listed by name, without it those of the newest bundle first.
    `capability`: where they are to run; the reply says what that means of the code there is.

    Raises InvalidInput for a limit or an `after` that no listing gave.
    """
    size = limit_of(limit)
    runnable = _run_by(capability, session) if capability is not None else None
    searched = rows.Searched(
        where={"bundle": bundle, "blob": blob, "namespace": namespace, "name": model, "state": state},
        capabilities=runnable,
        namespaces=by.namespaces,
        limit=size + 1,
    )
    found = _listed(text, searched, session, after=after)
    page = found[:size]
    following = _cursor(*page[-1], named=bool(text)) if len(found) > size else None
    return KernelListing(kernels=tuple(_view(kernel, of) for kernel, of in page), next=following, capabilities=runnable)


def _run_by(capability: Capability, session: Session) -> tuple[Capability, ...]:
    """What of the code there is runs where `capability` is: Triton compiles `sm_90a` for the card that is `sm_90`."""
    return tuple(code for code in rows.capabilities_held(session) if code == capability or capability.runs(code))


def _listed(text: str | None, searched: rows.Searched, session: Session, *, after: str | None) -> rows.Found:
    """Raises InvalidInput for an `after` that no such listing gave."""
    if searched.capabilities == ():
        return ()
    cursor, at = ("", None) if after is None else _parse_position(after)
    if not text:
        newest = (parse_cursor(f"{cursor}~{at.bundle}")[0], at) if at is not None else None
        return rows.list_newest(searched, session, after=newest)
    if at is not None and not cursor.startswith(text[:HEAD_CHARACTERS]):
        raise _no_cursor(after or "")
    return rows.list_named(text, searched, session, after=(cursor, at) if at is not None else None)


def _cursor(kernel: KernelRow, of: BundleRow, *, named: bool) -> str:
    where = f"{kernel.name[:HEAD_CHARACTERS]}~{of.digest}" if named else cursor_of(of.created_at, of.digest)
    return f"{where}~{kernel.position}"


def _parse_position(text: str) -> tuple[str, rows.Position]:
    """What the listing is sorted by, and the place."""
    cursor, _, position = text.rpartition("~")
    order, _, bundle = cursor.rpartition("~")
    if not (position.isascii() and position.isdecimal()) or int(position) >= _MOST_POSITION or not order:
        raise _no_cursor(text)
    try:
        return order, rows.Position(Digest.parse(bundle), int(position))
    except InvalidDigest as error:
        raise _no_cursor(text) from error


def _no_cursor(text: str) -> InvalidInput:
    return InvalidInput(f"wanted the `next` of a listing, found {text[:120]!r}", hint="pass it on as it was given")


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
