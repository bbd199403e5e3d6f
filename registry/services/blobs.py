"""Uploads: which bytes a namespace still owes, and whether they have arrived.

A blob counts as present only for a namespace that has opened its upload, and only while the store tells its size.
The store is asked outside of transactions (`observe`), the rows follow inside one (`confirm`).

A limit: the store knows bytes by digest alone. Where another namespace has put them already, nothing proves that this
one has them too; it must know digest and size, which only readers of that namespace's manifests do.
"""

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.orm import Session

from aot.errors import BlobMissing, BlobPending, Forbidden, InvalidInput, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from aot.schema.wire.blobs import Link
from aot.schema.wire.workers import Scope
from registry.db import blobs as rows
from registry.services.tokens import Principal
from registry.storage import BlobStore

LARGEST_BYTES = 1 << 40
AT_ONCE = 8
CHUNK_BYTES = 1 << 20
log = structlog.get_logger()


@dataclass(frozen=True)
class Arrived:
    """What the store told: the size of each digest, None where it is absent."""

    sizes: Mapping[Digest, int | None]
    store_checks_digests: bool


def observe(blobs: Iterable[Blob], store: BlobStore) -> Arrived:
    """Ask the store for every blob, several at a time. Raises StorageUnavailable."""
    digests = list({blob.digest for blob in blobs})
    if len(digests) <= 1:
        return Arrived({digest: store.stat(digest) for digest in digests}, store.enforces_checksum)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sizes = dict(zip(digests, pool.map(store.stat, digests), strict=True))
    return Arrived(sizes, store.enforces_checksum)


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
        if view is not None and view[0].stored_at is not None and arrived.sizes.get(blob.digest) == blob.size_bytes:
            continue
        rows.open_upload(blob, namespace=namespace, now=now, session=session)
        missing.append(blob)
    return tuple(missing)


def confirm(blobs: Iterable[Blob], *, namespace: Namespace, arrived: Arrived, now: datetime, session: Session) -> None:
    """Note that `namespace` has uploaded every one of `blobs`.

    Raises BlobMissing with the digests that have not arrived, SizeMismatch where the store holds another size than
    announced, and BlobPending while a store that does not check digests itself has blobs that the sweeper has not
    hashed yet.
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
            hint="open uploads for them, put the bytes, and send the request again",
            details={"digests": missing},
        )
    for blob in wanted:
        _require_size(blob, sizes[blob.digest])
    if not arrived.store_checks_digests:
        _require_hashed(wanted, views)
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


def hash_stored(blob: Blob, store: BlobStore) -> Blob | None:
    """Return the blob with its true size once its bytes are those of its digest; None where it has not arrived.

    Other bytes are removed, so that the next upload is not refused as present already.
    """
    if store.stat(blob.digest) is None:
        return None
    running, size = hashlib.sha256(), 0
    with store.open(blob.digest) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            running.update(chunk)
            size += len(chunk)
    if running.hexdigest() == blob.digest.hex:
        return Blob(digest=blob.digest, size_bytes=size)
    log.warning("upload-with-other-bytes", digest=blob.digest, found=running.hexdigest())
    store.delete(blob.digest)
    return None


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


def _require_hashed(blobs: tuple[Blob, ...], views: Mapping[Digest, rows.View]) -> None:
    pending = [blob.digest for blob in blobs if views[blob.digest][1].state is not BlobState.STORED]
    if pending:
        raise BlobPending(
            f"{len(pending)} uploads are still being hashed, the first {pending[0]}",
            hint="send the request again in a few seconds",
            details={"digests": pending},
        )
