"""SQL over profiles, workers, receipts and signing keys."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from aot.schema.names import Name
from aot.schema.profile import Profile
from registry.db.fleet_models import KeyRow, ProfileRow, ReceiptRow, WorkerProfileRow, WorkerRow
from registry.db.session import add_if_absent


def find_profile(name: Name, session: Session) -> Profile | None:
    row = session.get(ProfileRow, name)
    return row.profile if row else None


def list_profiles(session: Session) -> Sequence[Profile]:
    return session.scalars(select(ProfileRow.profile).order_by(ProfileRow.name)).all()


def lock_profile(name: Name, session: Session) -> ProfileRow | None:
    """The row, held against other writers until the transaction ends (SQLite has one writer anyway).

    Not against rows that refer to it: whoever publishes or submits comes to it last, with blobs in hand that a push,
    which comes to it first, may wait for.
    """
    return session.scalar(select(ProfileRow).where(ProfileRow.name == name).with_for_update(key_share=True))


def insert_profile(profile: Profile, *, now: datetime, session: Session) -> bool:
    """False where the name is taken."""
    return add_if_absent(ProfileRow(name=profile.name, profile=profile, registered_at=now), session)


def holders_of(profile: Name, *, seen_since: datetime, session: Session) -> dict[Name, datetime]:
    """The live workers that are `profile`, by name, and when each was last seen."""
    rows = session.execute(
        select(WorkerRow.name, WorkerRow.seen_at)
        .join(WorkerProfileRow, WorkerProfileRow.worker == WorkerRow.name)
        .where(WorkerProfileRow.profile == profile, WorkerRow.seen_at >= seen_since)
        .order_by(WorkerRow.name)
    )
    return {name: seen_at for name, seen_at in rows}


def held_profiles(session: Session, *, seen_since: datetime) -> Sequence[Profile]:
    """What a worker is, or was when it was last seen; of the others no such worker is known."""
    held = (
        select(WorkerProfileRow.profile)
        .join(WorkerRow, WorkerRow.name == WorkerProfileRow.worker)
        .where(WorkerRow.seen_at >= seen_since)
    )
    return session.scalars(select(ProfileRow.profile).where(ProfileRow.name.in_(held)).order_by(ProfileRow.name)).all()


def live_profiles(session: Session, *, seen_since: datetime) -> dict[Name, int]:
    """How many live workers each profile has; profiles without one are absent."""
    counts: dict[Name, int] = {}
    for profile in session.scalars(
        select(WorkerProfileRow.profile)
        .join(WorkerRow, WorkerRow.name == WorkerProfileRow.worker)
        .where(WorkerRow.seen_at >= seen_since)
    ):
        counts[profile] = counts.get(profile, 0) + 1
    return counts


class PresenceRow(NamedTuple):
    """A profile's live workers, and when the last one of it was seen; None where none ever was."""

    profile: Name
    live: int
    seen_at: datetime | None


def presence(session: Session, *, seen_since: datetime) -> Sequence[PresenceRow]:
    """One row for every profile, by name. A worker counts for each that it is."""
    live = func.count().filter(WorkerRow.seen_at >= seen_since)
    rows = session.execute(
        select(ProfileRow.name, live, func.max(WorkerRow.seen_at))
        .outerjoin(WorkerProfileRow, WorkerProfileRow.profile == ProfileRow.name)
        .outerjoin(WorkerRow, WorkerRow.name == WorkerProfileRow.worker)
        .group_by(ProfileRow.name)
        .order_by(ProfileRow.name)
    )
    return [PresenceRow(*row) for row in rows]


def live_workers(session: Session, *, seen_since: datetime) -> Sequence[tuple[Name, Name]]:
    """Profile and worker, for every profile that a live worker is."""
    rows = session.execute(
        select(WorkerProfileRow.profile, WorkerRow.name)
        .join(WorkerRow, WorkerRow.name == WorkerProfileRow.worker)
        .where(WorkerRow.seen_at >= seen_since)
        .order_by(WorkerProfileRow.profile, WorkerRow.name)
    )
    return [(profile, worker) for profile, worker in rows]


def put_worker(worker: Name, profiles: Sequence[Name], *, now: datetime, session: Session) -> None:
    """Make the worker known, seen now, and exactly these profiles."""
    add_if_absent(WorkerRow(name=worker, registered_at=now, seen_at=now), session)
    touch_worker(worker, now=now, session=session)
    session.execute(delete(WorkerProfileRow).where(WorkerProfileRow.worker == worker))
    session.add_all(
        WorkerProfileRow(worker=worker, profile=profile, position=position) for position, profile in enumerate(profiles)
    )
    session.flush()


def touch_worker(worker: Name, *, now: datetime, session: Session) -> bool:
    """Note that the worker was seen. False where nobody registered it."""
    done = session.execute(
        update(WorkerRow).where(WorkerRow.name == worker).values(seen_at=now),
        execution_options={"synchronize_session": False},
    )
    return done.rowcount == 1


def profiles_of(worker: Name, session: Session) -> Sequence[Name]:
    return session.scalars(
        select(WorkerProfileRow.profile).where(WorkerProfileRow.worker == worker).order_by(WorkerProfileRow.position)
    ).all()


def list_workers(session: Session, *, limit: int) -> Sequence[tuple[WorkerRow, tuple[Name, ...]]]:
    """The workers that were seen last, with their profiles, by name."""
    latest = select(WorkerRow).order_by(WorkerRow.seen_at.desc(), WorkerRow.name).limit(limit)
    workers = sorted(session.scalars(latest), key=lambda worker: worker.name)
    profiles: dict[Name, list[Name]] = {}
    of_these = select(WorkerProfileRow.worker, WorkerProfileRow.profile).where(
        WorkerProfileRow.worker.in_([worker.name for worker in workers])
    )
    for worker, profile in session.execute(of_these.order_by(WorkerProfileRow.position)):
        profiles.setdefault(worker, []).append(profile)
    return [(worker, tuple(profiles.get(worker.name, ()))) for worker in workers]


def add_receipt(row: ReceiptRow, session: Session) -> None:
    session.add(row)
    session.flush()


def known_keys(session: Session) -> Sequence[str]:
    """The public keys that have signed here, the last to begin at the end."""
    return session.scalars(select(KeyRow.public).order_by(KeyRow.first_used_at, KeyRow.public)).all()


def remember_key(public: str, *, now: datetime, session: Session) -> None:
    if session.get(KeyRow, public) is None:
        add_if_absent(KeyRow(public=public, first_used_at=now), session)
