"""SQL over what the object store has not been told yet.

A record is marked as written by compare-and-set on what it says. Where the row has changed since, it is due again, also
when somebody else has recorded the new account already: the old one may have been written over it.

`recorded_at` and `sealed_at` are set to one time together. A sweeper of before records were signed sets only the first,
so what it has written is due here.
"""

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, select, text, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.state import BundleState
from registry.db.models import (
    UNSEALED_BUNDLE,
    UNSEALED_TAG,
    BundleRow,
    ForgottenRecordRow,
    ForgottenTagRow,
    TagRow,
)
from registry.db.session import add_if_absent

RECORDED_STATES = (BundleState.LIVE, BundleState.WITHDRAWN)
_QUIETLY = {"synchronize_session": False}


def unrecorded_bundles(session: Session, *, bundle: Digest | None, limit: int) -> Sequence[BundleRow]:
    # In the words of the partial indexes.
    query = select(BundleRow).where(text(UNSEALED_BUNDLE))
    if bundle is not None:
        query = query.where(BundleRow.digest == bundle)
    return session.scalars(query.order_by(BundleRow.digest).limit(limit)).all()


def unrecorded_tags(session: Session, *, bundle: Digest | None, limit: int) -> Sequence[TagRow]:
    query = select(TagRow).where(text(f"({UNSEALED_TAG})"))
    if bundle is not None:
        query = query.where(TagRow.bundle == bundle)
    return session.scalars(query.limit(limit)).all()


def mark_bundle_recorded(row: BundleRow, *, now: datetime, session: Session) -> None:
    """Where the bundle's rows have gone meanwhile, its record is to go, too: it may have been removed before."""
    same = (
        BundleRow.digest == row.digest,
        BundleRow.state == row.state,
        BundleRow.recorded_at.is_not_distinct_from(row.recorded_at),
        BundleRow.sealed_at.is_not_distinct_from(row.sealed_at),
    )
    values = {"recorded_at": now, "sealed_at": now}
    done = session.execute(update(BundleRow).where(*same).values(values), execution_options=_QUIETLY)
    if done.rowcount == 0 and not forget_bundle_recorded(row.digest, session=session):
        begin_forgetting([row.digest], now=now, session=session)


def forget_bundle_recorded(digest: Digest, *, session: Session) -> bool:
    """Its record is due again. False where there is no such bundle."""
    done = session.execute(
        update(BundleRow).where(BundleRow.digest == digest).values(recorded_at=None), execution_options=_QUIETLY
    )
    return bool(done.rowcount)


def forget_tag_recorded(row: TagRow | ForgottenTagRow, *, session: Session) -> bool:
    """Its record is due again. False where there is no such tag."""
    due = update(TagRow).where(*_place(TagRow, row)).values(recorded_at=None)
    return bool(session.execute(due, execution_options=_QUIETLY).rowcount)


def mark_tag_recorded(row: TagRow, *, now: datetime, session: Session) -> None:
    """Where the tag was removed meanwhile, its record is to go, too: it may have been removed before."""
    same = (
        *_place(TagRow, row),
        TagRow.bundle == row.bundle,
        TagRow.moved_at == row.moved_at,
        TagRow.recorded_at.is_not_distinct_from(row.recorded_at),
        TagRow.sealed_at.is_not_distinct_from(row.sealed_at),
    )
    values = {"recorded_at": now, "sealed_at": now}
    done = session.execute(update(TagRow).where(*same).values(values), execution_options=_QUIETLY)
    if done.rowcount == 0 and not forget_tag_recorded(row, session=session):
        begin_forgetting_tags([row], now=now, session=session)


def begin_forgetting(bundles: Iterable[Digest], *, now: datetime, session: Session) -> None:
    """Note, in the transaction that removes their rows or sees that they are gone, that their records are to go.

    What a record tells of after `now` is not what was removed: it stays.
    """
    for bundle in sorted(bundles):
        note = _note(now)
        again = update(ForgottenRecordRow).where(ForgottenRecordRow.bundle == bundle).values(note=note)
        if session.execute(again, execution_options=_QUIETLY).rowcount == 0:
            add_if_absent(ForgottenRecordRow(bundle=bundle, note=note), session)


def noted_at(row: ForgottenRecordRow | ForgottenTagRow) -> datetime | None:
    """When the note was made; None for one of a version that tells no time."""
    _, _, time = row.note.partition(" ")
    return datetime.fromisoformat(time) if time else None


def _note(now: datetime) -> str:
    return f"{secrets.token_hex(16)} {now.isoformat()}"


def forgotten_bundles(session: Session, *, limit: int) -> Sequence[ForgottenRecordRow]:
    return session.scalars(select(ForgottenRecordRow).order_by(ForgottenRecordRow.bundle).limit(limit)).all()


def recorded_bundles(session: Session, *, after: Digest | None, limit: int) -> Sequence[Digest]:
    """A page of the bundles, by digest, of which a record was written."""
    query = select(BundleRow.digest).where(BundleRow.state.in_(RECORDED_STATES), BundleRow.recorded_at.is_not(None))
    if after is not None:
        query = query.where(BundleRow.digest > after)
    return session.scalars(query.order_by(BundleRow.digest).limit(limit)).all()


def end_forgetting(bundle: Digest, note: str, *, session: Session) -> None:
    """Compare-and-set: where it was asked for again since `note` was read, the record is still to go."""
    same = (ForgottenRecordRow.bundle == bundle, ForgottenRecordRow.note == note)
    session.execute(delete(ForgottenRecordRow).where(*same), execution_options=_QUIETLY)


def begin_forgetting_tags(tags: Iterable[TagRow], *, now: datetime, session: Session) -> None:
    """The same of tags."""
    for row in tags:
        # Its record is of before, also where the clock was ahead when it was moved.
        note = _note(max(now, row.moved_at))
        again = update(ForgottenTagRow).where(*_place(ForgottenTagRow, row)).values(note=note)
        if session.execute(again, execution_options=_QUIETLY).rowcount == 0:
            place = {"namespace": row.namespace, "name": row.name, "tag": row.tag, "profile": row.profile}
            add_if_absent(ForgottenTagRow(**place, note=note), session)


def forgotten_tags(session: Session, *, reference: Reference | None, limit: int) -> Sequence[ForgottenTagRow]:
    """Those of `reference` alone where one is given."""
    query = select(ForgottenTagRow)
    if reference is not None:
        query = query.where(
            ForgottenTagRow.namespace == reference.namespace,
            ForgottenTagRow.name == reference.name,
            ForgottenTagRow.tag == reference.tag,
        )
    return session.scalars(query.limit(limit)).all()


def is_forgotten(row: TagRow, *, session: Session) -> bool:
    """Whether the tag was removed, and its record may still be there."""
    return session.scalar(select(ForgottenTagRow.note).where(*_place(ForgottenTagRow, row))) is not None


def end_forgetting_tag(row: ForgottenTagRow, *, session: Session) -> None:
    """Compare-and-set, as `end_forgetting`."""
    same = (*_place(ForgottenTagRow, row), ForgottenTagRow.note == row.note)
    session.execute(delete(ForgottenTagRow).where(*same), execution_options=_QUIETLY)


def _place(
    table: type[TagRow] | type[ForgottenTagRow], row: TagRow | ForgottenTagRow
) -> tuple[ColumnElement[bool], ...]:
    return (
        table.namespace == row.namespace,
        table.name == row.name,
        table.tag == row.tag,
        table.profile == row.profile,
    )
