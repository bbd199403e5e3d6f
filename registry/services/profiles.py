"""Profiles by name: what workers are, CPU targets that none is yet, and what kernels alone are built for."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from aot.errors import InvalidProfile, ProfileNotFound
from aot.schema.devices import is_of_catalogue
from aot.schema.manifest import Manifest
from aot.schema.names import Name
from aot.schema.profile import CPU_TARGETS, Profile, cpu_target_among
from aot.schema.wire.workers import ProfileView
from registry.db import fleet as fleet_rows

# Workers are never forgotten, and a fleet may be scaled to none for weeks; one that is away longer decides nothing.
HOLDERS_SEEN_WITHIN = timedelta(days=30)


def get_profile(name: Name, *, now: datetime, session: Session) -> Profile:
    """The profile; a CPU target that no worker is has the toolchain of the CPU workers that there are.

    Raises ProfileNotFound naming the profiles there are.
    """
    target = _unheld_target(name, _held(now, session)) if name in CPU_TARGETS else None
    profile = target or fleet_rows.find_profile(name, session)
    if profile is None:
        raise _not_found(name, session)
    return profile


def list_views(
    *, live: dict[Name, int], queued: dict[Name, int], running: dict[Name, int], now: datetime, session: Session
) -> list[ProfileView]:
    """Every profile as `get_profile` answers it, by name.

    `live` workers, `queued` and `running` builds are counts by profile.
    """
    held = _held(now, session)
    names = {profile.name for profile in held}
    return [
        ProfileView(
            profile=_unheld_target(profile.name, held) or profile,
            live_workers=live.get(profile.name, 0),
            queued=queued.get(profile.name, 0),
            running=running.get(profile.name, 0),
            live_builds=queued.get(profile.name, 0) + running.get(profile.name, 0),
            held=profile.name in names,
        )
        for profile in fleet_rows.list_profiles(session)
    ]


def get_worker_profile(name: Name, *, now: datetime, session: Session) -> Profile:
    """A registered profile, for what a worker is to build. Raises ProfileNotFound, and InvalidProfile besides."""
    if fleet_rows.find_profile(name, session) is None:
        raise _not_found(name, session)
    profile = get_profile(name, now=now, session=session)
    if profile.is_for_kernels:
        known = _names_of_workers(session)
        raise InvalidProfile(
            f"the profile {name} is what kernels are built for without their card: no worker builds models for it; "
            f"workers have registered {', '.join(known) or 'none'}",
            hint=f"name a profile of a worker, or start one on a machine with a {profile.capability} card",
            details={"profiles": known},
        )
    return profile


def put_cpu_target(name: Name, *, now: datetime, session: Session) -> Profile:
    """Return the profile of a CPU target, and make it known where no worker is it. Raises ProfileNotFound."""
    row = fleet_rows.lock_profile(name, session)
    if row is None:
        profile = get_profile(name, now=now, session=session)
        if fleet_rows.insert_profile(profile, now=now, session=session):
            return profile
        row = fleet_rows.lock_profile(name, session)
        assert row is not None, "the insert failed because the row exists"
    # Asked under the lock, which a worker that registers holds to its end: what it is stays as it says.
    profile = get_profile(name, now=now, session=session)
    if row.profile != profile:
        row.profile, row.registered_at = profile, now  # the CPU workers have another toolchain than they had then
    return profile


def put_card(profile: Profile, *, now: datetime, session: Session) -> Profile:
    """Make a card of the catalogue known that no worker is; one that a worker is, or was, stays as the worker says.

    Raises InvalidProfile for a profile that kernels are built for.
    """
    row = fleet_rows.lock_profile(profile.name, session)
    if row is None and fleet_rows.insert_profile(profile, now=now, session=session):
        return profile
    row = row or fleet_rows.lock_profile(profile.name, session)
    assert row is not None, "the insert failed because the row exists"
    if is_of_catalogue(row.profile) and all(held.name != profile.name for held in _held(now, session)):
        row.profile, row.registered_at = profile, now  # pushed before, with another toolchain
        return profile
    return get_worker_profile(profile.name, now=now, session=session)


def nobody_ran(manifest: Manifest, *, now: datetime, session: Session) -> bool:
    """True where its builder says that it has not run, and no worker is of its profile."""
    if not manifest.qualification.not_run:
        return False
    return all(profile.name != manifest.profile.name for profile in _held(now, session))


def _held(now: datetime, session: Session) -> Sequence[Profile]:
    """What a worker is, or was when it was last seen, within HOLDERS_SEEN_WITHIN."""
    return fleet_rows.held_profiles(session, seen_since=now - HOLDERS_SEEN_WITHIN)


def _unheld_target(name: Name, held: Sequence[Profile]) -> Profile | None:
    return None if any(profile.name == name for profile in held) else cpu_target_among(name, held)


def _not_found(name: Name, session: Session) -> ProfileNotFound:
    known = _names_of_workers(session)
    return ProfileNotFound(
        f"no worker has registered the profile {name}; known are {', '.join(known) or 'none'}",
        hint="start a worker of that profile, or choose a known one",
        details={"profiles": known},
    )


def _names_of_workers(session: Session) -> list[Name]:
    return [profile.name for profile in fleet_rows.list_profiles(session) if not profile.is_for_kernels]
