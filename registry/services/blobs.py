"""Uploads: which bytes a namespace still owes, and whether they have arrived.

A blob counts as present only for a namespace that has opened its upload, and only while the store tells its size.
The store is asked outside of transactions (`observe`), the rows follow inside one (`confirm`).

A limit: the store knows bytes by digest alone. Where another namespace has put them already, nothing proves that this
one has them too; it must know digest and size, which only readers of that namespace's manifests do.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.orm import Session

from aot.errors import BlobMissing, BlobNotFound, BlobPending, Forbidden, InvalidInput, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from aot.schema.wire.blobs import Link
from aot.schema.wire.workers import Scope
from registry.clock import Clock
from registry.db import blobs as rows
from registry.db.session import Sessions
from registry.services.tokens import Principal
from registry.storage import BlobStore
from registry.storage.parts import TakesParts, comes_in_parts

LARGEST_BYTES = 1 << 40
AT_ONCE = 8
CHUNK_BYTES = 1 << 20
log = structlog.get_logger()


@dataclass(frozen=True)
class Arrived:
    """What the store told: the size of each digest, None where it is absent."""

    sizes: Mapping[Digest, int | None]
    store_checks_digests: bool
    in_parts: frozenset[Digest] = frozenset()  # no store checks the digest of these


def observe(blobs: Iterable[Blob], store: BlobStore) -> Arrived:
    """Ask the store for every blob, several at a time; one whose last part has arrived is completed.

    Raises StorageUnavailable.
    """
    wanted = list({blob.digest: blob for blob in blobs}.values())
    in_parts = frozenset(blob.digest for blob in wanted if comes_in_parts(blob, store))
    if len(wanted) <= 1:
        sizes = {blob.digest: size_in(store, blob) for blob in wanted}
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda blob: size_in(store, blob), wanted)
            sizes = dict(zip((blob.digest for blob in wanted), found, strict=True))
    return Arrived(sizes, store.enforces_checksum, in_parts)


def size_in(store: BlobStore, blob: Blob) -> int | None:
    """The size of what the store holds; the blob is made of its parts where they are all there."""
    size = store.stat(blob.digest)
    if size is None and isinstance(store, TakesParts) and comes_in_parts(blob, store):
        return store.complete(blob)
    return size


def require_upload(namespace: Namespace, *, by: Principal) -> None:
    """Whoever may submit, push or build in the namespace may put blobs there. Raises Forbidden."""
    if any(by.may(scope, namespace) for scope in (Scope.SUBMIT, Scope.PUSH, Scope.BUILD)):
        return
    raise Forbidden(
        f"this token may not put blobs into the namespace {namespace}",
        hint="it needs the scope submit or push there, or to be the token of a claim",
    )


def open_uploads(
    blobs: Iterable[Blob], *, namespace: Namespace, arrived: Arrived, now: datetime, session: Session
) -> tuple[Blob, ...]:
    """Return the blobs that `namespace` has to put. Raises InvalidInput for sizes that cannot be."""
    wanted = distinct(blobs)
    _hold(wanted, session=session)
    rows.ensure_namespace(namespace, now=now, session=session)
    # Also for what is there already: the caller counts on it from now on.
    rows.touch_views((blob.digest for blob in wanted), namespace=namespace, now=now, session=session)
    views = rows.views_of((blob.digest for blob in wanted), namespace=namespace, session=session)
    missing = []
    for blob in wanted:
        view = views.get(blob.digest)
        # All parts are there: an upload of gigabytes is not asked for twice. Whoever opened it may publish with it.
        done = view is not None and (view[0].stored_at is not None or blob.digest in arrived.in_parts)
        if done and arrived.sizes.get(blob.digest) == blob.size_bytes:
            continue
        rows.open_upload(blob, namespace=namespace, now=now, session=session)
        missing.append(blob)
    return tuple(missing)


def confirm(blobs: Iterable[Blob], *, namespace: Namespace, arrived: Arrived, now: datetime, session: Session) -> None:
    """Note that `namespace` has uploaded every one of `blobs`.

    Raises BlobMissing with the digests that have not arrived, SizeMismatch where the store holds another size than
    announced, and BlobPending while there are blobs that the sweeper has not hashed yet: those that came in parts,
    and all where the store does not check digests itself.
    """
    wanted = distinct(blobs)
    _hold(wanted, session=session)
    rows.touch_views((blob.digest for blob in wanted), namespace=namespace, now=now, session=session)
    views = rows.views_of((blob.digest for blob in wanted), namespace=namespace, session=session)
    sizes = arrived.sizes
    missing = [blob.digest for blob in wanted if blob.digest not in views or sizes.get(blob.digest) is None]
    if missing:
        raise BlobMissing(
            f"{len(missing)} of {len(wanted)} blobs were not uploaded, the first {missing[0]}",
            hint="open uploads for them, put the bytes, send the request again; bytes of another digest are removed",
            details={"digests": missing},
        )
    for blob in wanted:
        _require_size(blob, sizes[blob.digest])
    _require_hashed(
        [blob for blob in wanted if not arrived.store_checks_digests or blob.digest in arrived.in_parts], views
    )
    for blob in wanted:
        view, row = views[blob.digest]
        if row.state is not BlobState.STORED:
            rows.mark_stored(blob, now=now, session=session)
        if view.stored_at is None:
            rows.mark_uploaded(blob.digest, namespace=namespace, now=now, session=session)


def download_links(blobs: Iterable[Blob], store: BlobStore, *, expires_in: timedelta) -> tuple[Link, ...]:
    return tuple(store.download_link(blob, expires_in=expires_in) for blob in blobs)


def upload_links(blobs: Iterable[Blob], store: BlobStore, *, expires_in: timedelta) -> tuple[Link, ...]:
    return tuple(store.upload_link(blob, expires_in=expires_in) for blob in blobs)


def settle_upload(blob: Blob, *, store: BlobStore, sessions: Sessions, clock: Clock) -> bool:
    """Hash what has arrived of a pending blob. True when it is stored now.

    Other bytes, twice in a row, are removed, so that the next upload is not refused as present already. Several
    sweepers may be at it, and an upload may arrive at any moment: whoever was slow must neither remove the right bytes
    that came meanwhile nor count on bytes that another has removed. So each acts only on the row as it was before it
    began to read.
    """
    with sessions.reading() as session:
        seen = rows.find_pending(blob.digest, session)
    if seen is None or size_in(store, blob) is None:
        return False
    try:
        size, found = hash_in(store, blob)
        if found != blob.digest.hex:
            size, found = hash_in(store, blob)  # once more: a bad read is not a bad blob
    except BlobNotFound:
        return False  # another has removed it meanwhile
    if found == blob.digest.hex:
        whole = Blob(digest=blob.digest, size_bytes=size)
        with sessions.transaction() as session:
            return rows.mark_hashed(whole, seen, now=clock(), session=session)
    with sessions.transaction() as session:
        if rows.mark_removed(seen, now=clock(), session=session):
            log.warning("upload-with-other-bytes", digest=blob.digest, found=found)
            # Inside: nobody may count the next upload as stored before these bytes are gone.
            store.delete(blob.digest)
    return False


def hash_in(store: BlobStore, blob: Blob) -> tuple[int, str]:
    """Size and SHA-256 of the bytes in the store. Raises BlobNotFound."""
    running, size = hashlib.sha256(), 0
    with store.open(blob.digest) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            running.update(chunk)
            size += len(chunk)
    return size, running.hexdigest()


def distinct(blobs: Iterable[Blob]) -> tuple[Blob, ...]:
    """Each digest once. Raises InvalidInput where one is said to have two sizes, or a size that cannot be."""
    sizes: dict[Digest, int] = {}
    for blob in blobs:
        size = sizes.setdefault(blob.digest, blob.size_bytes)
        if size != blob.size_bytes or not 0 <= size <= LARGEST_BYTES:
            raise InvalidInput(
                f"{blob.digest} is said to have {blob.size_bytes} bytes, and elsewhere {size}",
                hint=f"send each digest with the one size of its bytes, from 0 to {LARGEST_BYTES}",
            )
    return tuple(Blob(digest=digest, size_bytes=size) for digest, size in sizes.items())


def _hold(blobs: tuple[Blob, ...], *, session: Session) -> None:
    """Raises BlobPending: what retention is deleting at this moment can be uploaded right after."""
    deleting = rows.hold_blobs((blob.digest for blob in blobs), session=session)
    if deleting:
        raise BlobPending(
            f"{len(deleting)} blobs are being deleted, the first {deleting[0]}",
            hint="send the request again in a few seconds",
            details={"digests": list(deleting)},
        )


def _require_size(blob: Blob, found: int | None) -> None:
    if found != blob.size_bytes:
        raise SizeMismatch(
            f"{blob.digest} should have {blob.size_bytes} bytes, the store holds {found}",
            hint="the request names a wrong size: measure the file again",
            details={"digest": blob.digest},
        )


def _require_hashed(blobs: Sequence[Blob], views: Mapping[Digest, rows.View]) -> None:
    pending = [blob.digest for blob in blobs if views[blob.digest][1].state is not BlobState.STORED]
    if pending:
        raise BlobPending(
            f"{len(pending)} uploads are still being hashed, the first {pending[0]}",
            hint="send the request again in a few seconds",
            details={"digests": pending},
        )
