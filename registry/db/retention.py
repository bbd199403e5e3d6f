"""SQL of retention. Candidates are locked first and judged again after: what changed in between is left alone."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, text, update
from sqlalchemy.orm import Session, load_only

from aot.schema.digest import Digest
from aot.schema.spec import Spec
from aot.schema.state import BlobState, BuildState, BundleState
from registry.db.builds import LIVE
from registry.db.bundles import hold_bundles
from registry.db.measurements import measured_blobs
from registry.db.models import (
    PENDING_BUNDLE,
    ArtifactBlobRow,
    ArtifactRow,
    BlobRow,
    BuildRow,
    BundleRow,
    GuardRow,
    KernelRow,
    MeasurementRow,
    NamespaceBlobRow,
    TagRow,
)

MEASURED = exists().where(MeasurementRow.blob == BlobRow.digest)
NAMED = or_(exists().where(ArtifactBlobRow.digest == BlobRow.digest), MEASURED)


def expired(*, unused_since: datetime, out_since: datetime) -> ColumnElement[bool]:
    """True of bundles without a tag whose last use, or whose end, is before the given times."""
    last_use = func.coalesce(BundleRow.used_at, BundleRow.published_at, BundleRow.created_at)
    ended = func.coalesce(BundleRow.withdrawn_at, BundleRow.created_at)
    over = or_(
        and_(BundleRow.state == BundleState.LIVE, last_use < unused_since, _later(unused_since)),
        and_(BundleRow.state.in_((BundleState.WITHDRAWN, BundleState.REJECTED)), ended < out_since, _later(out_since)),
    )
    return and_(over, ~exists().where(TagRow.bundle == BundleRow.digest))


def expiry(row: BundleRow, *, keep: timedelta, keep_out: timedelta) -> datetime | None:
    """When a bundle without a tag has `expired`, unless it is used before; None for one that waits for its proof."""
    match row.state:
        case BundleState.LIVE:
            return (row.used_at or row.published_at or row.created_at) + keep
        case BundleState.WITHDRAWN | BundleState.REJECTED:
            ended = row.withdrawn_at or row.created_at
            return max(ended, row.used_at or ended) + keep_out
        case BundleState.PENDING:
            return None


def unneeded(*, opened_before: datetime, named: ColumnElement[bool] = NAMED) -> ColumnElement[bool]:
    """True of blobs that are not `named` by a bundle and that nobody has opened for upload since."""
    opened = exists().where(NamespaceBlobRow.digest == BlobRow.digest, NamespaceBlobRow.opened_at >= opened_before)
    return and_(BlobRow.state.in_((BlobState.PENDING, BlobState.STORED)), ~named, ~opened)


def due(*, before: datetime, stuck: Mapping[str, datetime], named: ColumnElement[bool] = NAMED) -> ColumnElement[bool]:
    """True of blobs that were condemned before, or that a crash left half deleted. What a bundle names is never one.

    `stuck`: the bounds of `outside`, of when a delete was begun that nobody ends any more.
    """
    states = or_(
        and_(BlobRow.state == BlobState.CONDEMNED, BlobRow.condemned_at < before),
        and_(BlobRow.state == BlobState.DELETING, outside(BlobRow.condemned_at, **stuck)),
    )
    return and_(states, ~named)


def outside(begun: Any, *, before: datetime, or_after: datetime) -> ColumnElement[bool]:
    """True of what was `begun` before, or later than it can have been: the clock was ahead then."""
    return or_(begun < before, begun > or_after)


def hold_expired_bundles(
    session: Session, *, unused_since: datetime, out_since: datetime, limit: int
) -> Sequence[BundleRow]:
    """Bundles that have expired (`expired`); locked."""
    found = session.scalars(
        select(BundleRow)
        .options(load_only(BundleRow.digest))
        .where(expired(unused_since=unused_since, out_since=out_since))
        .order_by(BundleRow.created_at, BundleRow.digest)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    # A tag that was set before the lock and committed after the first look is seen by the second.
    tagged = set(session.scalars(select(TagRow.bundle).where(TagRow.bundle.in_([row.digest for row in found]))))
    return [row for row in found if row.digest not in tagged]


def unproven_bundles(
    session: Session, *, since: datetime, after: Digest | None, limit: int | None
) -> Sequence[tuple[Digest, str | None]]:
    """Pushed bundles, after `after` in order, that wait for their proof from before `since`, each with its build.

    The build is queued, or None where none is to prove it. Those that a worker has at work are not among them.
    """
    proving = and_(BuildRow.requalify == BundleRow.digest, LIVE)
    query = (
        select(BundleRow.digest, BuildRow.id)
        .join(BuildRow, proving, isouter=True)
        # In the words of its partial index: pending ones are few among many.
        .where(text(f"bundles.{PENDING_BUNDLE}"), func.coalesce(BuildRow.created_at, BundleRow.created_at) < since)
        .where(or_(BuildRow.id.is_(None), BuildRow.state == BuildState.QUEUED))
    )
    if after is not None:
        query = query.where(BundleRow.digest > after)
    return [(digest, build) for digest, build in session.execute(query.order_by(BundleRow.digest).limit(limit))]


def _later(bound: datetime) -> ColumnElement[bool]:
    """Used never, or before `bound`; a use counts whatever the state."""
    return or_(BundleRow.used_at.is_(None), BundleRow.used_at < bound)


def delete_bundles(bundles: Iterable[Digest], session: Session) -> None:
    """Their rows and the index of their contents. Blobs stay."""
    wanted = list(bundles)
    for table in (KernelRow, GuardRow, MeasurementRow, ArtifactBlobRow):
        session.execute(delete(table).where(table.bundle.in_(wanted)))
    session.execute(delete(ArtifactRow).where(ArtifactRow.bundle.in_(wanted)))
    session.execute(delete(BundleRow).where(BundleRow.digest.in_(wanted)))


def mark_used(bundles: Iterable[Digest], *, now: datetime, session: Session) -> None:
    wanted = sorted(set(bundles))
    hold_bundles(wanted, session)
    later = or_(BundleRow.used_at.is_(None), BundleRow.used_at < now)
    statement = update(BundleRow).where(BundleRow.digest.in_(wanted), later).values(used_at=now)
    session.execute(statement, execution_options={"synchronize_session": False})


def specs_of_live_builds(session: Session) -> Sequence[Spec]:
    return session.scalars(select(BuildRow.spec).where(LIVE)).all()


def hold_unneeded_blobs(
    session: Session, *, opened_before: datetime, needed: Collection[Digest], after: Digest | None, limit: int
) -> Sequence[BlobRow]:
    """Blobs, after `after` in order, that no bundle names and nobody has opened for upload since; locked."""
    condition = unneeded(opened_before=opened_before)
    query = select(BlobRow).where(condition, BlobRow.created_at < opened_before).order_by(BlobRow.digest).limit(limit)
    if after is not None:
        query = query.where(BlobRow.digest > after)
    held = session.scalars(query.with_for_update(skip_locked=True)).all()
    # Now that nobody can take them up any more, look again at who did so before.
    still = set(
        session.scalars(select(BlobRow.digest).where(BlobRow.digest.in_([row.digest for row in held]), condition))
    )
    return [row for row in held if row.digest in still and row.digest not in needed]


def last_candidate(session: Session, *, opened_before: datetime, after: Digest | None, limit: int) -> Digest | None:
    """Where the page ends that `hold_unneeded_blobs` reads; None where there is none."""
    page = select(BlobRow.digest).where(unneeded(opened_before=opened_before), BlobRow.created_at < opened_before)
    if after is not None:
        page = page.where(BlobRow.digest > after)
    found = session.scalars(page.order_by(BlobRow.digest).limit(limit)).all()
    return found[-1] if found else None


def condemn(blobs: Iterable[Digest], *, now: datetime, session: Session) -> None:
    states = (BlobState.PENDING, BlobState.STORED)
    session.execute(
        update(BlobRow)
        .where(BlobRow.digest.in_(list(blobs)), BlobRow.state.in_(states))
        .values(state=BlobState.CONDEMNED, condemned_at=now)
    )


def date_from_now(session: Session, *, now: datetime, or_after: datetime, limit: int) -> int:
    """Let blobs that were condemned later than they can have been wait from `now` on; return how many that were.

    The clock was ahead then. It was before now, and not known when: links may have been handed out until a moment ago.
    """
    ahead = select(BlobRow).where(BlobRow.state == BlobState.CONDEMNED, BlobRow.condemned_at > or_after)
    held = session.scalars(ahead.order_by(BlobRow.digest).limit(limit).with_for_update(skip_locked=True)).all()
    for row in held:
        row.condemned_at = now
    return len(held)


def hold_condemned(
    session: Session, *, before: datetime, stuck: Mapping[str, datetime], limit: int
) -> Sequence[BlobRow]:
    """Blobs whose bytes are to go (`due`); locked."""
    query = select(BlobRow).where(due(before=before, stuck=stuck)).order_by(BlobRow.digest).limit(limit)
    held = session.scalars(query.with_for_update(skip_locked=True)).all()
    taken = [row.digest for row in held]
    named = set(session.scalars(select(ArtifactBlobRow.digest).where(ArtifactBlobRow.digest.in_(taken))))
    named |= measured_blobs(taken, session)
    return [row for row in held if row.digest not in named]


def begin_delete(blobs: Iterable[Digest], *, now: datetime, session: Session) -> None:
    session.execute(
        update(BlobRow).where(BlobRow.digest.in_(list(blobs))).values(state=BlobState.DELETING, condemned_at=now)
    )


def forget_blob(digest: Digest, session: Session, *, since: datetime) -> bool:
    """Remove the rows of a blob whose bytes are gone. False where another sweeper has taken it over."""
    row = session.scalar(select(BlobRow).where(BlobRow.digest == digest).with_for_update())
    if row is None or row.state is not BlobState.DELETING or row.condemned_at != since:
        return False
    session.execute(delete(NamespaceBlobRow).where(NamespaceBlobRow.digest == digest))
    session.execute(delete(BlobRow).where(BlobRow.digest == digest))
    return True
