"""SQL over what the object store has not been told yet.

A record is marked as written by compare-and-set on what it says. Where the row has changed since, it is due again, also
when somebody else has recorded the new account already: the old one may have been written over it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.state import BundleState
from registry.db.models import BundleRow, ForgottenRecordRow, TagRow

RECORDED_STATES = (BundleState.LIVE, BundleState.WITHDRAWN)
_QUIETLY = {"synchronize_session": False}


def unrecorded_bundles(session: Session, *, bundle: Digest | None, limit: int) -> Sequence[BundleRow]:
    query = select(BundleRow).where(BundleRow.recorded_at.is_(None), BundleRow.state.in_(RECORDED_STATES))
    if bundle is not None:
        query = query.where(BundleRow.digest == bundle)
    return session.scalars(query.order_by(BundleRow.digest).limit(limit)).all()


def unrecorded_tags(session: Session, *, bundle: Digest | None, limit: int) -> Sequence[TagRow]:
    query = select(TagRow).where(TagRow.recorded_at.is_(None))
    if bundle is not None:
        query = query.where(TagRow.bundle == bundle)
    return session.scalars(query.limit(limit)).all()


def mark_bundle_recorded(row: BundleRow, *, now: datetime, session: Session) -> None:
    same = (BundleRow.digest == row.digest, BundleRow.state == row.state, BundleRow.recorded_at.is_(None))
    done = session.execute(update(BundleRow).where(*same).values(recorded_at=now), execution_options=_QUIETLY)
    if done.rowcount == 0:
        forget_bundle_recorded(row.digest, session=session)


def forget_bundle_recorded(digest: Digest, *, session: Session) -> None:
    session.execute(
        update(BundleRow).where(BundleRow.digest == digest).values(recorded_at=None), execution_options=_QUIETLY
    )


def forget_tag_recorded(row: TagRow, *, session: Session) -> None:
    session.execute(update(TagRow).where(*_place(row)).values(recorded_at=None), execution_options=_QUIETLY)


def mark_tag_recorded(row: TagRow, *, now: datetime, session: Session) -> None:
    place = _place(row)
    same = (TagRow.bundle == row.bundle, TagRow.moved_at == row.moved_at, TagRow.recorded_at.is_(None))
    done = session.execute(update(TagRow).where(*place, *same).values(recorded_at=now), execution_options=_QUIETLY)
    if done.rowcount == 0:
        forget_tag_recorded(row, session=session)


def begin_forgetting(bundles: Iterable[Digest], *, session: Session) -> None:
    """Note, in the transaction that removes their rows, that their records are to go."""
    for bundle in bundles:
        if session.get(ForgottenRecordRow, bundle) is None:
            session.add(ForgottenRecordRow(bundle=bundle))
    session.flush()


def forgotten_bundles(session: Session, *, limit: int) -> Sequence[Digest]:
    return session.scalars(select(ForgottenRecordRow.bundle).order_by(ForgottenRecordRow.bundle).limit(limit)).all()


def end_forgetting(bundle: Digest, *, session: Session) -> None:
    session.execute(delete(ForgottenRecordRow).where(ForgottenRecordRow.bundle == bundle))


def _place(row: TagRow) -> tuple[ColumnElement[bool], ...]:
    return (
        TagRow.namespace == row.namespace,
        TagRow.name == row.name,
        TagRow.tag == row.tag,
        TagRow.profile == row.profile,
    )
