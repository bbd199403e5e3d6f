"""SQL over builds. Every change of state is a compare-and-set on the state and attempt that were read."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, String, func, literal_column, select, text, tuple_, update
from sqlalchemy.orm import Session, defer

from aot.schema.digest import BuildKey, Digest
from aot.schema.names import Name, Namespace
from aot.schema.state import BuildEvent, advance
from registry.db.models import LIVE_BUILD, BuildLineRow, BuildRow
from registry.db.session import add_if_absent
from registry.db.types import Unindexed

# In the words of the partial indexes: where parameters say the states, SQLite reads every build that there ever was.
LIVE = text(f"builds.{LIVE_BUILD}")
RUNNING = literal_column("builds.state", String) == literal_column("'running'", String)
# By id, and yet found by another index: most builds in that order have ended.
IN_ORDER = Unindexed(BuildRow.id)

Asked = tuple[Namespace, Name, BuildKey]
"""What identifies the bundle that somebody wants. The name is part of it, because the manifest carries it."""


def find_build(build: str, session: Session) -> BuildRow | None:
    return session.get(BuildRow, build)


def find_live(asked: Asked, session: Session) -> BuildRow | None:
    return next(iter(live_builds([asked], session).values()), None)


def live_builds(asked: Sequence[Asked], session: Session) -> dict[Asked, BuildRow]:
    """The build that is queued or running for each, where there is one."""
    if not asked:
        return {}
    rows = session.scalars(
        select(BuildRow).where(
            tuple_(BuildRow.namespace, BuildRow.name, BuildRow.build_key).in_(list(asked)),
            LIVE,
            BuildRow.requalify.is_(None),
        )
    )
    return {(row.namespace, row.name, row.build_key): row for row in rows}


def find_live_requalify(bundle: Digest, session: Session) -> BuildRow | None:
    return live_requalifying([bundle], session).get(bundle)


def live_requalifying(bundles: Iterable[Digest], session: Session) -> dict[Digest, BuildRow]:
    """The build that is to prove each of these bundles, where there is one."""
    wanted = list(bundles)
    rows = session.scalars(select(BuildRow).where(LIVE, BuildRow.requalify.in_(wanted))) if wanted else ()
    return {row.requalify: row for row in rows if row.requalify is not None}


def insert(row: BuildRow, session: Session) -> bool:
    """False where a live build holds the key: the caller reads that one."""
    return add_if_absent(row, session)


def advance_build(
    row: BuildRow,
    event: BuildEvent,
    *,
    session: Session,
    also: ColumnElement[bool] | None = None,
    **changes: Any,
) -> bool:
    """Apply `event` to the build as it was read, with `changes`; afterwards `row` is as the database has it.

    False, and nothing changed, where the event has no meaning in the row's state, somebody else was faster, or
    `also` does not hold any more.
    """
    to = advance(row.state, event)
    if to is None:
        return False
    return update_build(row, session=session, also=also, state=to, **changes)


def update_build(row: BuildRow, *, session: Session, also: ColumnElement[bool] | None = None, **changes: Any) -> bool:
    """Apply `changes` while the build is in the state and attempt that were read. False when it is not any more."""
    session.flush()
    statement = update(BuildRow).where(
        BuildRow.id == row.id, BuildRow.state == row.state, BuildRow.attempt == row.attempt
    )
    if also is not None:
        statement = statement.where(also)
    done = session.execute(statement.values(**changes), execution_options={"synchronize_session": False})
    session.refresh(row)
    return done.rowcount == 1


def free(*which: ColumnElement[bool]) -> Select[tuple[str]]:
    """The ids of the builds for which all of `which` is true, but for those that somebody changes already; locked.

    Whoever changes several builds takes them so, and never waits for one while he holds others: a claim does that, in
    an order of its own. What was left out is looked at by the next pass. Inside of the statement that changes them:
    there may be more than one takes parameters.
    """
    return select(BuildRow.id).where(*which).order_by(IN_ORDER).with_for_update(skip_locked=True, key_share=True)


def expired_builds(session: Session, *, now: datetime) -> Sequence[BuildRow]:
    """Running builds whose lease has run out, but for those that somebody changes at this moment; locked."""
    over = (RUNNING, BuildRow.lease_expires_at <= now)
    query = select(BuildRow).where(*over).order_by(IN_ORDER)
    return session.scalars(query.with_for_update(skip_locked=True, key_share=True)).all()


def shorten_leases(session: Session, *, over: datetime, to: datetime) -> None:
    """Leases that end after `over` end at `to`."""
    longer = free(RUNNING, BuildRow.lease_expires_at > over)
    session.execute(
        update(BuildRow).where(BuildRow.id.in_(longer)).values(lease_expires_at=to),
        execution_options={"synchronize_session": False},
    )


def running_by_worker(session: Session) -> dict[Name, tuple[str, Namespace]]:
    """What each worker builds, and in which namespace."""
    rows = session.execute(select(BuildRow.worker, BuildRow.id, BuildRow.namespace).where(RUNNING))
    return {worker: (build, namespace) for worker, build, namespace in rows if worker is not None}


def list_builds(
    session: Session, *, where: dict[str, Any], namespaces: Sequence[Namespace], after: str | None, limit: int
) -> Sequence[BuildRow]:
    """Newest first, after the build `after`. `where` compares columns by name; None compares nothing."""
    # No view of a build tells its factors.
    statement = select(BuildRow).options(defer(BuildRow.factors)).order_by(BuildRow.id.desc()).limit(limit)
    for column, value in where.items():
        if value is not None:
            statement = statement.where(getattr(BuildRow, column) == value)
    if namespaces:
        statement = statement.where(BuildRow.namespace.in_(namespaces))
    if after is not None:
        statement = statement.where(BuildRow.id < after)
    return session.scalars(statement).all()


def count_lines(build: str, session: Session) -> int:
    """The sequence number of the next line."""
    last = session.scalar(select(func.max(BuildLineRow.sequence)).where(BuildLineRow.build == build))
    return 0 if last is None else last + 1


def add_lines(rows: Sequence[BuildLineRow], session: Session) -> None:
    session.add_all(rows)
    session.flush()


def read_lines(build: str, session: Session, *, after: int, limit: int) -> Sequence[BuildLineRow]:
    return session.scalars(
        select(BuildLineRow)
        .where(BuildLineRow.build == build, BuildLineRow.sequence > after)
        .order_by(BuildLineRow.sequence)
        .limit(limit)
    ).all()
