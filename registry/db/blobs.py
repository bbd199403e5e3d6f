"""SQL over blobs and what each namespace has uploaded of them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, case, exists, func, select, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from registry.db.fleet_models import NamespaceRow
from registry.db.models import BlobRow, NamespaceBlobRow
from registry.db.session import add_all_if_absent, add_if_absent, change_all

View = tuple[NamespaceBlobRow, BlobRow]


class PendingBlob(NamedTuple):
    """A blob as it was when somebody began to hash it. `removed_at`: when bytes of it were last removed or replaced."""

    digest: Digest
    created_at: datetime
    removed_at: datetime | None


class Seen(NamedTuple):
    """The row of a blob as it was before somebody asked the store for its bytes."""

    state: BlobState
    created_at: datetime
    condemned_at: datetime | None


AT_ONCE = 500  # parameters of one statement; every database takes as many


def ensure_namespace(namespace: Namespace, *, now: datetime, session: Session) -> None:
    if session.get(NamespaceRow, namespace) is None:
        add_if_absent(NamespaceRow(name=namespace, created_at=now), session)


def views_of(digests: Iterable[Digest], *, namespace: Namespace, session: Session) -> Mapping[Digest, View]:
    """What `namespace` has opened for upload, by digest."""
    wanted = list(dict.fromkeys(digests))
    found: dict[Digest, View] = {}
    for start in range(0, len(wanted), AT_ONCE):
        rows = session.execute(
            select(NamespaceBlobRow, BlobRow)
            .join(BlobRow, BlobRow.digest == NamespaceBlobRow.digest)
            .where(
                NamespaceBlobRow.namespace == namespace,
                NamespaceBlobRow.digest.in_(wanted[start : start + AT_ONCE]),
            )
        )
        found.update({view.digest: (view, blob) for view, blob in rows})
    return found


def hold_blobs(digests: Iterable[Digest], *, session: Session) -> tuple[Digest, ...]:
    """Keep retention off these blobs until the transaction ends, and let the condemned ones live.

    Returns those that are being deleted, or held (`registry.db.held`): their bytes may vanish at any moment. SQLite has
    one writer anyway; elsewhere the rows are locked, always in the same order.
    """
    wanted = sorted(set(digests))
    deleting: list[Digest] = []
    for start in range(0, len(wanted), AT_ONCE):
        some = wanted[start : start + AT_ONCE]
        found = session.execute(
            select(BlobRow.digest, BlobRow.state)
            .where(BlobRow.digest.in_(some))
            .order_by(BlobRow.digest)
            .with_for_update()
        ).all()
        deleting += [digest for digest, state in found if state is BlobState.DELETING]
        condemned = [digest for digest, state in found if state is BlobState.CONDEMNED]
        if condemned:
            revived = case((BlobRow.stored_at.is_(None), BlobState.PENDING), else_=BlobState.STORED)
            session.execute(
                update(BlobRow)
                .where(BlobRow.digest.in_(condemned), BlobRow.state == BlobState.CONDEMNED)
                .values(state=revived, condemned_at=None)
            )
    return tuple(deleting)


def touch_views(
    digests: Iterable[Digest],
    *,
    namespace: Namespace,
    before: datetime | None = None,
    now: datetime,
    session: Session,
) -> None:
    """Note that the namespace has asked for these uploads now, if not after `before`: retention counts from there."""
    wanted = sorted(set(digests))
    since = () if before is None else (NamespaceBlobRow.opened_at < before,)
    for start in range(0, len(wanted), AT_ONCE):
        session.execute(
            update(NamespaceBlobRow)
            .where(
                NamespaceBlobRow.namespace == namespace,
                NamespaceBlobRow.digest.in_(wanted[start : start + AT_ONCE]),
                *since,
            )
            .values(opened_at=now)
        )


def keep_open(
    digest: Digest,
    *,
    namespace: Namespace | None = None,
    since: datetime,
    before: datetime,
    now: datetime,
    session: Session,
) -> None:
    """Whoever waits for the blob, or `namespace` alone, asks for it now, if not after `before`.

    While it is pending, and was made known, or bytes of it were last removed, `since` then.
    """
    begun = func.coalesce(BlobRow.condemned_at, BlobRow.created_at) >= since
    pending = select(BlobRow.digest).where(BlobRow.digest == digest, BlobRow.state == BlobState.PENDING, begun)
    if session.scalar(pending.with_for_update()) is None:
        return
    view = NamespaceBlobRow
    waits = [view.digest == digest, view.stored_at.is_(None), view.opened_at < before]
    if namespace is not None:
        waits.append(view.namespace == namespace)
    session.execute(update(view).where(*waits).values(opened_at=now), execution_options={"synchronize_session": False})


def make_known(blobs: Iterable[Blob], *, now: datetime, session: Session) -> None:
    """Make sure that the blobs have rows. Those that are there stay as they are, and free for others."""
    add_all_if_absent(BlobRow, [_pending(blob, now) for blob in _in_order(blobs)], session)


def open_uploads(blobs: Iterable[Blob], *, namespace: Namespace, now: datetime, session: Session) -> None:
    """Make sure that the blobs, and the namespace's views of them, have rows; those that are there stay as they are.

    But for a row that was made to hold the place (`registry.db.held`): nobody had told a size. It is locked, as every
    blob's row is here, so that it does not go while a view of it comes.
    """
    wanted = _in_order(blobs)
    add_all_if_absent(
        BlobRow,
        [_pending(blob, now) for blob in wanted],
        session,
        fill="size_bytes",
        where=and_(BlobRow.size_bytes == 0, BlobRow.stored_at.is_(None)),
    )
    views = [{"namespace": namespace, "digest": blob.digest, "opened_at": now, "stored_at": None} for blob in wanted]
    add_all_if_absent(NamespaceBlobRow, views, session)


def mark_stored(blobs: Iterable[Blob], *, now: datetime, session: Session) -> None:
    """Compare-and-set the blobs from pending to stored, each with the size that the store tells."""
    changes = [{"of": blob.digest, "size": blob.size_bytes} for blob in _in_order(blobs)]
    table = BlobRow.__table__
    change_all(
        update(table)
        .where(table.c.digest == bindparam("of"), table.c.state == BlobState.PENDING)
        .values(state=BlobState.STORED, size_bytes=bindparam("size"), stored_at=now),
        changes,
        session,
    )


def _pending(blob: Blob, now: datetime) -> dict[str, Any]:
    same = {"digest": blob.digest, "size_bytes": blob.size_bytes}
    return {**same, "state": BlobState.PENDING, "created_at": now, "stored_at": None}


def _in_order(blobs: Iterable[Blob]) -> list[Blob]:
    """Each digest once, and rows always locked in the same order."""
    return sorted({blob.digest: blob for blob in blobs}.values(), key=lambda blob: blob.digest)


def find_pending(digest: Digest, session: Session) -> PendingBlob | None:
    query = select(BlobRow.digest, BlobRow.created_at, BlobRow.condemned_at)
    row = session.execute(query.where(BlobRow.digest == digest, BlobRow.state == BlobState.PENDING)).one_or_none()
    return None if row is None else PendingBlob(*row)


def seen(digests: Iterable[Digest], session: Session) -> dict[Digest, Seen]:
    """The rows as they are now; what has none is absent."""
    wanted = list(dict.fromkeys(digests))
    found: dict[Digest, Seen] = {}
    for start in range(0, len(wanted), AT_ONCE):
        query = select(BlobRow.digest, BlobRow.state, BlobRow.created_at, BlobRow.condemned_at)
        for digest, *row in session.execute(query.where(BlobRow.digest.in_(wanted[start : start + AT_ONCE]))):
            found[digest] = Seen(*row)
    return found


def is_as_seen(row: BlobRow, seen: Seen | None) -> bool:
    """Whether no bytes of this pending blob can have been removed or replaced since it was `seen`."""
    if seen is None or seen.created_at != row.created_at:
        return False
    if seen.state is BlobState.CONDEMNED:
        return row.condemned_at is None  # it was wanted again, by this transaction or another
    return seen.state is BlobState.PENDING and seen.condemned_at == row.condemned_at


def is_deleting(digest: Digest, *, since: datetime, session: Session) -> bool:
    same = (BlobRow.digest == digest, BlobRow.state == BlobState.DELETING, BlobRow.condemned_at == since)
    return session.scalar(select(BlobRow.digest).where(*same)) is not None


def account_for(blob: Blob, *, now: datetime, session: Session) -> None:
    """Bytes lie where blobs are: where no row says so, retention is told of them."""
    row = BlobRow(
        digest=blob.digest,
        size_bytes=blob.size_bytes,
        state=BlobState.CONDEMNED,
        created_at=now,
        stored_at=None,
        condemned_at=now,
    )
    if session.get(BlobRow, blob.digest) is None and add_if_absent(row, session):
        return
    # A row that was made to hold the place (`registry.db.held`) stays then: it has bytes.
    made = (BlobRow.digest == blob.digest, BlobRow.state == BlobState.DELETING, BlobRow.size_bytes == 0)
    session.execute(
        update(BlobRow).where(*made).values(size_bytes=blob.size_bytes),
        execution_options={"synchronize_session": False},
    )


def mark_hashed(blob: Blob, seen: PendingBlob, *, now: datetime, session: Session) -> bool:
    """Compare-and-set to stored. False where it is not pending any more, or bytes were removed since it was seen."""
    done = session.execute(
        update(BlobRow).where(*as_seen(seen)).values(state=BlobState.STORED, size_bytes=blob.size_bytes, stored_at=now),
        execution_options={"synchronize_session": False},
    )
    return done.rowcount == 1


def as_seen(seen: PendingBlob) -> tuple[ColumnElement[bool], ...]:
    """True of the row while the blob is pending, and no bytes of it were removed or replaced since it was seen."""
    same = BlobRow.condemned_at.is_(None) if seen.removed_at is None else BlobRow.condemned_at == seen.removed_at
    return (
        BlobRow.digest == seen.digest,
        BlobRow.created_at == seen.created_at,
        BlobRow.state == BlobState.PENDING,
        same,
    )


def mark_uploaded(digests: Iterable[Digest], *, namespace: Namespace, now: datetime, session: Session) -> None:
    table = NamespaceBlobRow.__table__
    change_all(
        update(table).where(table.c.namespace == namespace, table.c.digest == bindparam("of")).values(stored_at=now),
        [{"of": digest} for digest in sorted(set(digests))],
        session,
    )


def pending_blobs(
    session: Session, *, opened_since: datetime, start: Digest, limit: int, over_bytes: int = -1
) -> tuple[Blob, ...]:
    """Blobs larger than `over_bytes` that were opened for upload and are not known to be stored.

    Each once, by digest from `start` on, then from the first one.
    """
    opened = exists().where(NamespaceBlobRow.digest == BlobRow.digest, NamespaceBlobRow.opened_at >= opened_since)
    query = (
        select(BlobRow.digest, BlobRow.size_bytes)
        .where(BlobRow.state == BlobState.PENDING, BlobRow.size_bytes > over_bytes, opened)
        .order_by(BlobRow.digest)
    )
    found = list(session.execute(query.where(BlobRow.digest >= start).limit(limit)))
    if len(found) < limit:
        found += session.execute(query.where(BlobRow.digest < start).limit(limit - len(found)))
    return tuple(Blob(digest=digest, size_bytes=size) for digest, size in found)


def namespaces_of(digest: Digest, session: Session) -> tuple[Namespace, ...]:
    """Who has opened it for upload and not been told yet that it is stored."""
    query = select(NamespaceBlobRow.namespace).where(
        NamespaceBlobRow.digest == digest, NamespaceBlobRow.stored_at.is_(None)
    )
    return tuple(session.scalars(query.order_by(NamespaceBlobRow.namespace)))


def lately_wanted(digests: Iterable[Digest], *, since: datetime, session: Session) -> set[tuple[Digest, Namespace]]:
    """Which of these are not stored yet, with each namespace that has opened them for upload since then."""
    wanted = list(dict.fromkeys(digests))
    found: set[tuple[Digest, Namespace]] = set()
    for start in range(0, len(wanted), AT_ONCE):
        rows = session.execute(
            select(NamespaceBlobRow.digest, NamespaceBlobRow.namespace)
            .join(BlobRow, BlobRow.digest == NamespaceBlobRow.digest)
            .where(
                NamespaceBlobRow.digest.in_(wanted[start : start + AT_ONCE]),
                NamespaceBlobRow.opened_at >= since,
                BlobRow.state != BlobState.STORED,
            )
        )
        found |= {(digest, namespace) for digest, namespace in rows}
    return found
