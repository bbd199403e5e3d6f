"""SQL over blobs that are held: nobody opens, counts on or stores them while the object store works on their bytes.

Such a row says `deleting` and not since when it is condemned, so retention, which ends what others began to delete,
leaves it alone. `created_at` tells who holds it, and stays: what was seen of the row before counts no more.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, delete, exists, select, text, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.state import BlobState
from registry.db.blobs import PendingBlob, as_seen
from registry.db.models import HELD_BLOB, BlobRow, NamespaceBlobRow
from registry.db.retention import NAMED, outside
from registry.db.session import add_if_absent

_QUIETLY = {"synchronize_session": False}
# A row that `hold` has made: nobody has told a size, and nobody has opened the upload.
_MADE = and_(
    BlobRow.size_bytes == 0,
    ~NAMED,
    ~exists().where(NamespaceBlobRow.digest == BlobRow.digest),
    BlobRow.stored_at.is_(None),
)


class Held(NamedTuple):
    """Since when, and what the row says afterwards. `state` None: the row was made, and goes."""

    digest: Digest
    since: datetime
    state: BlobState | None
    condemned_at: datetime | None


def hold(digest: Digest, session: Session, *, now: datetime, unless: Callable[[Session], bool]) -> Held | None:
    """Hold the blob, stored or known or not; None where somebody else holds or deletes it, and where `unless` is true.

    That is asked once nobody can change the row any more. The row of a stored blob stays as it is: its bytes are in
    their place, and nobody asks for more of them.
    """
    query = select(BlobRow).where(BlobRow.digest == digest).with_for_update()
    row = session.scalar(query)
    if row is None:
        made = BlobRow(digest=digest, size_bytes=0, state=BlobState.DELETING, created_at=now, stored_at=None)
        if add_if_absent(made, session):
            return Held(digest, now, None, None)
        row = session.scalar(query)
    if row is None or row.state is BlobState.DELETING or unless(session):
        return None
    held = Held(digest, now, row.state, row.condemned_at)
    if row.stored_at is None:
        row.state, row.created_at, row.condemned_at = BlobState.DELETING, now, None
        session.flush()
    return held


def hold_pending(seen: PendingBlob, session: Session, *, now: datetime, copied: Blob | None = None) -> Held | None:
    """Hold a blob whose bytes are being removed, or put in their place by a copy of `copied`, which nobody has hashed.

    None where it is not pending any more, or bytes were removed or replaced since it was seen: what lies there now is
    not what was seen.
    """
    size = {} if copied is None else {"size_bytes": copied.size_bytes}
    done = session.execute(
        update(BlobRow)
        .where(*as_seen(seen))
        .values(state=BlobState.DELETING, created_at=now, condemned_at=None, **size),
        execution_options=_QUIETLY,
    )
    return Held(seen.digest, now, BlobState.PENDING, now) if done.rowcount == 1 else None


def release(held: Held, session: Session) -> None:
    """The store is done. Changes nothing where somebody else has ended it for a holder that seemed to have died."""
    mine = _held_since(held.digest, held.since)
    # First, so that whoever opens the upload at this moment is seen: his view of the row lets it stay.
    session.execute(select(BlobRow.digest).where(*mine).with_for_update())
    if held.state is None:
        session.execute(delete(BlobRow).where(*mine, _MADE), execution_options=_QUIETLY)
    session.execute(
        update(BlobRow).where(*mine).values(state=held.state or BlobState.PENDING, condemned_at=held.condemned_at),
        execution_options=_QUIETLY,
    )


def half_done(session: Session, *, before: datetime, or_after: datetime, limit: int) -> Sequence[Held]:
    """What is held since then, as it is to be released: whoever held it has died, and may have removed bytes."""
    # In the words of its partial index: held ones are few among many.
    query = select(BlobRow.digest, BlobRow.created_at, _MADE).where(
        text(f"blobs.{HELD_BLOB}"), outside(BlobRow.created_at, before=before, or_after=or_after)
    )
    rows = session.execute(query.order_by(BlobRow.created_at).limit(limit))
    return [Held(digest, since, None if made else BlobState.PENDING, since) for digest, since, made in rows]


def _held_since(digest: Digest, since: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        BlobRow.digest == digest,
        BlobRow.state == BlobState.DELETING,
        BlobRow.condemned_at.is_(None),
        BlobRow.created_at == since,
    )
