"""SQL of the queue. Each read costs the same with ten builds waiting as with ten thousand.

The partial indexes serve it only where a statement says the index's condition in the same words: hence literals, not
parameters. PostgreSQL takes `ix_builds_ready` for certain only where no other index has the order that is asked for:
hence whole places in it are compared where equal columns would say the same. By those it took `ix_builds_queued`, and
walked past every older build of the other namespaces.

A build is *ready* while nothing is known that keeps it from being built (`waiting` is empty).
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import ColumnElement, Integer, String, and_, func, literal_column, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from aot.schema.names import Name, Namespace
from aot.schema.state import BuildState
from registry.db.builds import RUNNING, free
from registry.db.models import LIVE_BUILD, BuildRow, NamespaceClaimRow
from registry.db.session import add_if_absent, hold_turn
from registry.db.types import UtcTime, Word

QUEUED = literal_column("builds.state", String) == literal_column("'queued'", String)
READY = and_(QUEUED, literal_column("builds.waiting", String) == literal_column("''", String))
QUEUE = (BuildRow.namespace, BuildRow.profile)
FIRST_PAGE, PAGE = 1, 20
# A replica that hangs in the middle of a claim must not hang the others.
LOCK_SECONDS = 10

_HEADS = text(
    """
    WITH RECURSIVE waits(namespace) AS (
        SELECT min(namespace) FROM builds WHERE state = 'queued' AND waiting = ''
        UNION ALL
        SELECT (SELECT min(namespace) FROM builds
                WHERE state = 'queued' AND waiting = '' AND namespace > waits.namespace)
        FROM waits WHERE waits.namespace IS NOT NULL
    ), best(namespace, priority) AS (
        SELECT waits.namespace, (SELECT top.priority FROM (SELECT namespace, profile, priority FROM builds
                WHERE state = 'queued' AND waiting = '' AND (namespace, profile) <= (waits.namespace, :profile)
                ORDER BY namespace DESC, profile DESC, priority DESC LIMIT 1) AS top
            WHERE top.namespace = waits.namespace AND top.profile = :profile)
        FROM waits WHERE waits.namespace IS NOT NULL
    )
    SELECT best.namespace, best.priority, (SELECT id FROM builds
            WHERE state = 'queued' AND waiting = ''
              AND (namespace, profile, priority) >= (best.namespace, :profile, best.priority)
            ORDER BY namespace, profile, priority, id LIMIT 1) AS build,
        namespace_claims.claimed_at
    FROM best LEFT JOIN namespace_claims ON namespace_claims.namespace = best.namespace
    WHERE best.priority IS NOT NULL
    """
).columns(namespace=Word(Namespace), priority=Integer, build=String, claimed_at=UtcTime)


class HeadRow(NamedTuple):
    """A namespace's best ready build of one profile, and when the namespace last got a worker."""

    namespace: Namespace
    priority: int
    build: str
    claimed_at: datetime | None


class LiveRow(NamedTuple):
    """How many builds of a profile are in a live state, and the one of them that was submitted first."""

    state: BuildState
    profile: Name
    builds: int
    oldest: str


def take_turns(session: Session) -> None:
    """Let no other claim run until this transaction ends, so that counts and order are true when it commits."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    hold_turn(connection, "claims")


def ready_heads(profile: Name, session: Session) -> Sequence[HeadRow]:
    """One row for every namespace that has a ready build of the profile."""
    found = session.execute(_HEADS, {"profile": str.__str__(profile)})
    return [HeadRow(*row) for row in found]


def running_counts(session: Session) -> dict[tuple[Namespace, Name], int]:
    rows = session.execute(
        select(BuildRow.namespace, BuildRow.profile, func.count())
        .where(RUNNING)
        .group_by(BuildRow.namespace, BuildRow.profile)
    )
    return {(namespace, profile): count for namespace, profile, count in rows}


def live_by_profile(session: Session) -> Sequence[LiveRow]:
    """One row for every profile and live state that has builds: read from `ix_builds_live` alone."""
    columns = (BuildRow.state, BuildRow.profile)
    rows = session.execute(
        select(*columns, func.count(), func.min(BuildRow.id)).where(text(LIVE_BUILD)).group_by(*columns)
    )
    return [LiveRow(*row) for row in rows]


def running_in(namespace: Namespace, session: Session) -> int:
    query = select(func.count()).select_from(BuildRow).where(RUNNING, BuildRow.namespace == namespace)
    return session.scalar(query) or 0


def busy_workers(session: Session) -> set[Name]:
    return {worker for worker in session.scalars(select(BuildRow.worker).where(RUNNING)) if worker is not None}


def first_lease_end(session: Session) -> datetime | None:
    """When the lease of a running build runs out, or ran out, of all such the first; None where nothing runs."""
    return session.scalar(select(func.min(BuildRow.lease_expires_at)).where(RUNNING))


def ready_builds(namespace: Namespace, profile: Name, session: Session) -> Iterator[BuildRow]:
    """The namespace's ready builds of the profile: highest priority first, then the oldest.

    Page by page, each to its end before the next: the caller may write between two rows.
    """
    priority = _highest(tuple_(*QUEUE) <= (namespace, profile), namespace, profile, session)
    while priority is not None:
        after, limit = "", FIRST_PAGE
        while page := _page((namespace, profile, priority, after), session, limit=limit):
            yield from page
            after, limit = page[-1].id, PAGE
        priority = _highest(
            tuple_(*QUEUE, BuildRow.priority) < (namespace, profile, priority), namespace, profile, session
        )


def _highest(place: ColumnElement[bool], namespace: Namespace, profile: Name, session: Session) -> int | None:
    """The priority of the last ready build at such a `place`; None where that is in another queue."""
    backwards = (*(column.desc() for column in QUEUE), BuildRow.priority.desc())
    row = session.execute(select(*QUEUE, BuildRow.priority).where(READY, place).order_by(*backwards).limit(1)).first()
    return row.priority if row is not None and (row.namespace, row.profile) == (namespace, profile) else None


def _page(after: tuple[Namespace, Name, int, str], session: Session, *, limit: int) -> list[BuildRow]:
    """The next ready builds of the same namespace, profile and priority."""
    columns = (*QUEUE, BuildRow.priority, BuildRow.id)
    found = session.scalars(select(BuildRow).where(READY, tuple_(*columns) > after).order_by(*columns).limit(limit))
    return list(takewhile(lambda row: (row.namespace, row.profile, row.priority) == after[:3], found.all()))


def held_up_builds(profile: Name, session: Session, *, limit: int) -> Sequence[BuildRow]:
    """Queued builds of the profile that are known not to be ready, the oldest first."""
    kept_back = literal_column("builds.waiting", String) != literal_column("''", String)
    query = select(BuildRow).where(QUEUED, BuildRow.profile == profile, kept_back)
    return session.scalars(query.order_by(BuildRow.id).limit(limit)).all()


def queued_after(place: tuple[str, str], session: Session, *, limit: int) -> Sequence[BuildRow]:
    """The next queued builds, in the order of profile and id, after `place`."""
    query = select(BuildRow).where(QUEUED, tuple_(BuildRow.profile, BuildRow.id) > place)
    return session.scalars(query.order_by(BuildRow.profile, BuildRow.id).limit(limit)).all()


def say_waiting(row: BuildRow, waiting: str, session: Session) -> bool:
    """Note why the build waits, while it is in the attempt that was read and still queued."""
    done = session.execute(
        update(BuildRow).where(BuildRow.id == row.id, QUEUED, BuildRow.attempt == row.attempt).values(waiting=waiting),
        execution_options={"synchronize_session": False},
    )
    return done.rowcount == 1


def make_ready(profile: Name, *, unless: Sequence[str], session: Session) -> None:
    """Builds of the profile that waited for the reasons `unless` alone wait no more."""
    # Of one that is changed at this moment the sweeper says it.
    waited = free(QUEUED, BuildRow.profile == profile, BuildRow.waiting.in_(unless))
    these = update(BuildRow).where(BuildRow.id.in_(waited)).values(waiting="")
    session.execute(these, execution_options={"synchronize_session": False})


def due_tickets(
    profile: Name, session: Session, *, sent_before: datetime, or_after: datetime, limit: int
) -> Sequence[BuildRow]:
    """Ready builds of the profile whose last ticket was sent before the one time or after the other; oldest first.

    Locked, but for those that somebody changes at this moment.
    """
    due = or_(BuildRow.sent_at <= sent_before, BuildRow.sent_at > or_after)
    query = select(BuildRow).where(READY, BuildRow.profile == profile, due).order_by(BuildRow.id).limit(limit)
    return session.scalars(query.with_for_update(skip_locked=True, key_share=True)).all()


def note_claim(namespace: Namespace, *, now: datetime, session: Session) -> None:
    """Remember that the namespace got a worker."""
    row = session.get(NamespaceClaimRow, namespace)
    if row is None:
        add_if_absent(NamespaceClaimRow(namespace=namespace, claimed_at=now), session)
    else:
        row.claimed_at = now
