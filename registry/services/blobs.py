"""Uploads: which bytes a namespace still owes, and whether they have arrived.

A blob counts as present only for a namespace that has opened its upload, and only while the store tells its size.
The store is asked outside of transactions (`observe`), the rows follow inside one (`confirm`).

A limit: the store knows bytes by digest alone. Where another namespace has put them already, nothing proves that this
one has them too; it must know digest and size, which only readers of that namespace's manifests do.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import BinaryIO

import structlog
from sqlalchemy.orm import Session

from aot.errors import BlobMissing, BlobNotFound, BlobPending, Forbidden, InvalidInput, SizeMismatch
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from aot.schema.wire.blobs import SLOWEST_BYTES_PER_SECOND, Link
from aot.schema.wire.workers import Scope
from registry.clock import Clock
from registry.db import blobs as rows
from registry.db import held as held_rows
from registry.db.models import BlobRow
from registry.db.session import Sessions
from registry.deps import Deps
from registry.services import holding
from registry.services.hashing import Hashing
from registry.services.tokens import Principal
from registry.storage import BlobStore
from registry.storage.parts import comes_in_parts, incoming_for

LARGEST_BYTES = 1 << 40
AT_ONCE = 8
LONGEST_LIVES = timedelta(days=7)  # S3 refuses to sign for longer
# What is waited for is noted as asked for no more often; far below every time after which it would be given up.
ASKED_EVERY = timedelta(minutes=1)
# What was not stored by then is given up as any upload: a sweeper that ends again and again begins again each time.
LONGEST_HASHED = timedelta(days=30)
log = structlog.get_logger()


@dataclass(frozen=True)
class Arrived:
    """What the store told: the size of each digest, None where it is absent."""

    sizes: Mapping[Digest, int | None]
    store_checks_digests: bool
    in_parts: frozenset[Digest] = frozenset()  # no store checks the digest of these
    seen: Mapping[Digest, rows.Seen] = field(default_factory=dict)  # before the store was asked


def observe(
    blobs: Iterable[Blob], store: BlobStore, *, sessions: Sessions | None = None, namespace: Namespace | None = None
) -> Arrived:
    """Ask the store for every blob, several at a time: where blobs are, then where `namespace` puts them.

    The rows are read first: a row that changes while the store is asked, or after, tells that its answer may be out of
    date. Without `sessions` no upload can be confirmed with it. One whose last part has arrived is completed. Raises
    StorageUnavailable.
    """
    wanted = list({blob.digest: blob for blob in blobs}.values())
    in_parts = frozenset(blob.digest for blob in wanted if comes_in_parts(blob, store))
    seen = _seen(wanted, sessions)
    if len(wanted) <= 1:
        sizes = {blob.digest: size_in(store, blob, namespace=namespace) for blob in wanted}
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda blob: size_in(store, blob, namespace=namespace), wanted)
            sizes = dict(zip((blob.digest for blob in wanted), found, strict=True))
    return Arrived(sizes, store.enforces_checksum, in_parts, seen)


def _seen(blobs: Sequence[Blob], sessions: Sessions | None) -> Mapping[Digest, rows.Seen]:
    if sessions is None:
        return {}
    with sessions.reading() as session:
        return rows.seen((blob.digest for blob in blobs), session)


def size_in(store: BlobStore, blob: Blob, *, namespace: Namespace | None = None) -> int | None:
    """The size of what the store holds, or of what `namespace` has put and nobody has hashed yet."""
    size = store.stat(blob.digest)
    if size is None and namespace is not None and (incoming := incoming_for(blob, store, namespace)) is not None:
        return incoming.complete(blob)
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
    # First, as whoever submits and `reindex`: two that come to a new namespace at once do not wait for each other.
    rows.ensure_namespace(namespace, now=now, session=session)
    # Rows that nobody sees yet, before those that others may hold: who comes to one of them holds none of these.
    rows.make_known((blob for blob in wanted if blob.digest not in arrived.seen), now=now, session=session)
    _hold(wanted, session=session)
    # Also for what is there already: the caller counts on it from now on.
    rows.touch_views((blob.digest for blob in wanted), namespace=namespace, now=now, session=session)
    views = rows.views_of((blob.digest for blob in wanted), namespace=namespace, session=session)
    missing = []
    for blob in wanted:
        view = views.get(blob.digest)
        # All parts are there: an upload of gigabytes is not asked for twice. Whoever opened it may publish with it.
        done = view is not None and (
            view[0].stored_at is not None or (blob.digest in arrived.in_parts and _is_there_yet(view[1], arrived))
        )
        if done and arrived.sizes.get(blob.digest) == blob.size_bytes:
            continue
        missing.append(blob)
    rows.open_uploads(missing, namespace=namespace, now=now, session=session)
    return tuple(missing)


def confirm(blobs: Iterable[Blob], *, namespace: Namespace, arrived: Arrived, now: datetime, session: Session) -> None:
    """Note that `namespace` has uploaded every one of `blobs`.

    Raises BlobMissing with the digests that have not arrived, SizeMismatch where the store holds another size than
    announced, and BlobPending while there are blobs that the sweeper has not hashed yet: those that came in parts,
    and all where the store does not check digests itself; and for what may have been removed since the store was asked.
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
    _require_there_yet(views, arrived)
    new = [blob for blob in wanted if views[blob.digest][1].state is not BlobState.STORED]
    unmarked = [blob.digest for blob in wanted if views[blob.digest][0].stored_at is None]
    rows.mark_stored(new, now=now, session=session)
    rows.mark_uploaded(unmarked, namespace=namespace, now=now, session=session)


def download_links(blobs: Iterable[Blob], store: BlobStore, *, expires_in: timedelta) -> tuple[Link, ...]:
    return tuple(store.download_link(blob, expires_in=expires_in) for blob in blobs)


def lives_for(blobs: Iterable[Blob], *, least: timedelta) -> timedelta:
    """How long links to `blobs` live that are fetched one after another: the last one still `least` when its turn is.

    Bytes that must not go meanwhile have to be held by something else: settings promise no more than `least`.
    """
    seconds = sum(blob.size_bytes for blob in blobs) // SLOWEST_BYTES_PER_SECOND
    return max(least, min(least + timedelta(seconds=seconds), LONGEST_LIVES))


def upload_links(
    blobs: Iterable[Blob], store: BlobStore, *, namespace: Namespace, expires_in: timedelta
) -> tuple[Link, ...]:
    def link(blob: Blob) -> Link:
        incoming = incoming_for(blob, store, namespace)
        return (incoming.link if incoming is not None else store.upload_link)(blob, expires_in=expires_in)

    return tuple(map(link, blobs))


def settle_upload(
    blob: Blob,
    *,
    store: BlobStore,
    sessions: Sessions,
    clock: Clock,
    hashing: Hashing | None = None,
    seconds: float = math.inf,
) -> bool:
    """Hash what lies where a pending blob goes. True when it is stored now; False too while hashing takes longer.

    Other bytes, twice in a row, are removed, so that the next upload is not refused as present already. Several
    sweepers may be at it, and an upload may arrive at any moment: whoever was slow must neither remove the right bytes
    that came meanwhile nor count on bytes that another has removed. So each acts only on the row as it was before it
    began to read.
    """
    hashing = hashing or Hashing()
    with sessions.reading() as session:
        seen = rows.find_pending(blob.digest, session)
    if seen is None or store.stat(blob.digest) is None:
        return False
    # What was removed since it was begun is not what lies there now.
    key = (blob.digest, str(seen.removed_at))

    def open_version() -> tuple[BinaryIO, str]:
        version = store.version(blob.digest)  # first: what is read is this version or a later one
        return store.open(blob.digest), version or ""

    try:
        hashed = hashing.hash(key, blob.digest, open_version, seconds=seconds)
    except BlobNotFound:
        return False  # another has removed it meanwhile
    if hashed is None:
        keep_open(blob.digest, key, hashing, sessions=sessions, clock=clock)
        return False
    hashing.forget(key)
    if hashed.hex == blob.digest.hex:
        whole = Blob(digest=blob.digest, size_bytes=hashed.size_bytes)
        with sessions.transaction() as session:
            return rows.mark_hashed(whole, seen, now=clock(), session=session)
    # Nobody may count the next upload as stored before these bytes are gone.
    hold = partial(held_rows.hold_pending, seen, now=clock())
    with holding.held(blob.digest, hold, sessions=sessions) as held:
        if held is not None:
            log.warning("upload-with-other-bytes", digest=blob.digest, found=hashed.hex)
            store.delete(blob.digest, version=hashed.version)
    return False


def keep_open(
    digest: Digest,
    key: tuple[str, ...],
    hashing: Hashing,
    *,
    sessions: Sessions,
    clock: Clock,
    namespace: Namespace | None = None,
) -> None:
    """Let no sweeper give up an upload that is being hashed, for as long as that gets forward (`Hashing.goes_on`).

    Terabytes take longer than retention waits for whoever opened the upload; none takes LONGEST_HASHED.
    """
    if hashing.goes_on(key):
        now = clock()
        bounds = {"since": now - LONGEST_HASHED, "before": now - ASKED_EVERY}
        with sessions.transaction() as session:
            rows.keep_open(digest, namespace=namespace, **bounds, now=now, session=session)


@contextmanager
def confirming(blobs: Sequence[Blob], deps: Deps, *, namespace: Namespace) -> Iterator[tuple[Arrived, Session]]:
    """Ask the store (`observe`), then open the transaction that confirms.

    Who is told to come again there (BlobPending) has asked, which retention counts. With the transaction that note
    would be undone, and what waits for its turn to be hashed would be given up though its client asks again and again.
    """
    arrived = observe(blobs, deps.store, sessions=deps.sessions, namespace=namespace)
    try:
        with deps.sessions.transaction() as session:
            yield arrived, session
    except BlobPending:
        with deps.sessions.transaction() as session:
            wanted, now = [blob.digest for blob in blobs], deps.clock()
            rows.hold_blobs(wanted, session=session)
            rows.touch_views(wanted, namespace=namespace, before=now - ASKED_EVERY, now=now, session=session)
        raise


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
    """Raises BlobPending: what is being deleted, or held, at this moment can be uploaded right after."""
    deleting = rows.hold_blobs((blob.digest for blob in blobs), session=session)
    if deleting:
        raise BlobPending(
            f"{len(deleting)} blobs are being deleted, or moved to their place, the first {deleting[0]}",
            hint="send the request again in a few seconds",
            details={"digests": list(deleting)},
        )


def _is_there_yet(row: BlobRow, arrived: Arrived) -> bool:
    """Whether what the store told still holds: what is stored by now is there, whatever was seen before."""
    return row.state is BlobState.STORED or rows.is_as_seen(row, arrived.seen.get(row.digest))


def _require_there_yet(views: Mapping[Digest, rows.View], arrived: Arrived) -> None:
    changed = [digest for digest, (_, row) in views.items() if not _is_there_yet(row, arrived)]
    if changed:
        raise BlobPending(
            f"{len(changed)} blobs may have been removed while they were looked for, the first {changed[0]}",
            hint="send the request again in a few seconds",
            details={"digests": changed},
        )


def _require_size(blob: Blob, found: int | None) -> None:
    if found != blob.size_bytes:
        raise SizeMismatch(
            f"{blob.digest} should have {blob.size_bytes} bytes, the store holds {found}",
            hint="the request names a wrong size: measure the file again",
            details={"digest": blob.digest},
        )


def _require_hashed(blobs: Sequence[Blob], views: Mapping[Digest, rows.View]) -> None:
    pending = [blob for blob in blobs if views[blob.digest][1].state is not BlobState.STORED]
    if pending:
        raise BlobPending(
            f"{len(pending)} uploads are still being hashed, the first {pending[0].digest}",
            hint="send the request again in a few seconds",
            details={
                "digests": [blob.digest for blob in pending],
                "size_bytes": sum(blob.size_bytes for blob in pending),  # so long may it take
            },
        )
