"""Profiles by name: those that workers are, and those that kernels alone are built for."""

from sqlalchemy.orm import Session

from aot.errors import InvalidProfile, ProfileNotFound
from aot.schema.names import Name
from aot.schema.profile import Profile
from registry.db import fleet as fleet_rows


def get_profile(name: Name, session: Session) -> Profile:
    """Raises ProfileNotFound naming the profiles there are."""
    profile = fleet_rows.find_profile(name, session)
    if profile is None:
        known = _names_of_workers(session)
        raise ProfileNotFound(
            f"no worker has registered the profile {name}; known are {', '.join(known) or 'none'}",
            hint="start a worker of that profile, or choose a known one",
            details={"profiles": known},
        )
    return profile


def get_worker_profile(name: Name, session: Session) -> Profile:
    """As `get_profile`, for what a worker is to build. Raises InvalidProfile besides."""
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


def _names_of_workers(session: Session) -> list[Name]:
    return [profile.name for profile in fleet_rows.list_profiles(session) if not profile.is_for_kernels]
