"""Profiles by name: what workers are, CPU targets that none is yet, and what kernels alone are built for."""

from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import InvalidProfile, ProfileNotFound
from aot.schema.names import Name
from aot.schema.profile import CPU_TARGETS, Profile, cpu_target_among
from registry.db import fleet as fleet_rows


def get_profile(name: Name, session: Session) -> Profile:
    """The profile; a CPU target that no worker is has the toolchain of the CPU workers that there are.

    Raises ProfileNotFound naming the profiles there are.
    """
    profile = (_unheld_target(name, session) if name in CPU_TARGETS else None) or fleet_rows.find_profile(name, session)
    if profile is None:
        raise _not_found(name, session)
    return profile


def get_worker_profile(name: Name, session: Session) -> Profile:
    """A registered profile, for what a worker is to build. Raises ProfileNotFound, and InvalidProfile besides."""
    if fleet_rows.find_profile(name, session) is None:
        raise _not_found(name, session)
    profile = get_profile(name, session)
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
    profile = get_profile(name, session)
    row = fleet_rows.lock_profile(name, session)
    if row is None:
        fleet_rows.insert_profile(profile, now=now, session=session)
    elif row.profile != profile:
        row.profile, row.registered_at = profile, now  # the CPU workers have another toolchain than they had then
    return profile


def is_held(name: Name, session: Session) -> bool:
    """True where a worker is, or was, of that profile."""
    return any(profile.name == name for profile in fleet_rows.held_profiles(session))


def _unheld_target(name: Name, session: Session) -> Profile | None:
    held = fleet_rows.held_profiles(session)
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
