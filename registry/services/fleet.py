"""Workers and the profiles that they are."""

import math
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import Conflict, InvalidProfile
from aot.keys import queue_for
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.state import BuildState
from aot.schema.wire.workers import (
    ProfileListing,
    RegisterReply,
    RegisterRequest,
    Scope,
    WorkerListing,
    WorkerView,
)
from registry.db import builds as build_rows
from registry.db import fleet as rows
from registry.db import queue
from registry.services import profiles, waiting
from registry.services.tokens import Principal

MOST_PROFILES = 16
MOST_LISTED = 2000


def register(
    request: RegisterRequest,
    *,
    by: Principal,
    live_since: datetime,
    seen_every_seconds: float,
    now: datetime,
    session: Session,
) -> RegisterReply:
    """Make the worker known, seen now, with its profiles; return the queues that serve them, in their order.

    A profile replaces one of the same name, unless another live worker holds that: then Conflict names the
    difference. Raises Forbidden, InvalidProfile.
    """
    by.require(Scope.CLAIM)
    names = [profile.name for profile in request.profiles]
    if not 0 < len(names) <= MOST_PROFILES or len(set(names)) != len(names):
        raise InvalidProfile(
            f"wanted 1 to {MOST_PROFILES} profiles of different names, found {', '.join(names) or 'none'}",
            hint="name the worker's own profile first, then the levels that it covers",
        )
    # In one order, so that two workers that register the same profiles at once do not wait for each other.
    for profile in sorted(request.profiles, key=lambda profile: profile.name):
        _put_profile(profile, worker=request.worker, live_since=live_since, now=now, session=session)
    live = rows.live_profiles(session, seen_since=live_since)
    # Before any build, as a claim of the same worker takes them.
    rows.put_worker(request.worker, names, now=now, session=session)
    for profile in request.profiles:
        if profile.name not in live:
            unless = (waiting.no_worker(profile.name), waiting.not_run(profile))
            queue.make_ready(profile.name, unless=unless, session=session)
    queues = tuple(dict.fromkeys(queue_for(profile) for profile in request.profiles))
    return RegisterReply(queues=queues, seen_every_seconds=seen_every_seconds)


def list_workers(*, by: Principal, live_since: datetime, session: Session) -> WorkerListing:
    """The MOST_LISTED workers that were seen last; what one builds is told to those who may see that namespace.

    Workers are never forgotten, and those of a fleet that scales have new names every day.
    """
    running = {
        worker: build
        for worker, (build, namespace) in build_rows.running_by_worker(session).items()
        if by.sees(namespace)
    }
    return WorkerListing(
        workers=tuple(
            WorkerView(
                name=worker.name,
                profiles=profiles,
                seen_at=worker.seen_at,
                live=worker.seen_at >= live_since,
                build=running.get(worker.name),
            )
            for worker, profiles in rows.list_workers(session, limit=MOST_LISTED)
        )
    )


def list_profiles(*, live_since: datetime, now: datetime, session: Session) -> ProfileListing:
    live = rows.live_profiles(session, seen_since=live_since)
    counts = queue.live_by_profile(session)
    builds = {
        str(state): {row.profile: row.builds for row in counts if row.state is state}
        for state in (BuildState.QUEUED, BuildState.RUNNING)
    }
    return ProfileListing(profiles=tuple(profiles.list_views(live=live, **builds, now=now, session=session)))


def _put_profile(profile: Profile, *, worker: Name, live_since: datetime, now: datetime, session: Session) -> None:
    row = rows.lock_profile(profile.name, session)
    if row is None:
        if rows.insert_profile(profile, now=now, session=session):
            return
        row = rows.lock_profile(profile.name, session)
        assert row is not None, "the insert failed because the row exists"
    if row.profile == profile:
        return
    holders = rows.holders_of(profile.name, seen_since=live_since, session=session)
    others = {holder: seen_at for holder, seen_at in holders.items() if holder != worker}
    if others:
        raise Conflict(
            f"the profile {profile.name} is held by {', '.join(others)} with "
            f"{'; '.join(differences(row.profile, profile))}",
            hint="give this worker's profile another name, or stop the other worker: one that has ended is forgotten "
            f"{math.ceil((now - live_since).total_seconds())} seconds after it was last seen",
            # When each was seen: the token of a worker may not list them.
            details={"workers": list(others), "seen_at": {name: at.isoformat() for name, at in others.items()}},
        )
    row.profile = profile
    row.registered_at = now


def differences(known: Profile, offered: Profile) -> Sequence[str]:
    """Every fact in which the two differ, as people read it."""
    before, after = _facts(known), _facts(offered)
    return [
        _differs(name, before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _differs(name: str, before: object, after: object) -> str:
    if after is None:
        return f"{name} {before}, which this worker does not have"
    return f"{name} {before}, not {after}" if before is not None else f"no {name}, which this worker has as {after}"


def _facts(profile: Profile) -> dict[str, object]:
    facts: dict[str, object] = {"capability": profile.capability, "threads": profile.threads}
    facts |= {name: getattr(profile.toolchain, name) for name in profile.toolchain.__struct_fields__}
    if profile.device is not None:
        facts |= {f"device.{name}": getattr(profile.device, name) for name in profile.device.__struct_fields__}
    return facts | {f"package {name}": version for name, version in profile.packages.items()}
