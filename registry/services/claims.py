"""Builds from the worker's side: claim, renew, report, fail, release.

A claim gives a lease and a token bound to this attempt. Whoever holds the token holds the build while the row says
so: running, the same attempt, and the lease not run out. Everything else is LeaseLost, and the worker stops.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from aot.errors import Forbidden, InvalidInput, LeaseLost
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.spec import Blob
from aot.schema.state import BuildEvent, BuildState
from aot.schema.wire.builds import (
    SHUTTING_DOWN,
    BuildView,
    ClaimRequest,
    FailRequest,
    ProgressRequest,
    ReleaseRequest,
    RenewReply,
)
from aot.schema.wire.workers import Scope
from registry.db import builds as rows
from registry.db import fleet as fleet_rows
from registry.db import queue
from registry.db.models import BuildLineRow, BuildRow
from registry.services import measurements, tokens, unreadable, waiting
from registry.services.builds import build_not_found, finished, reject_pushed, view_of
from registry.services.candidates import Candidates
from registry.services.tokens import Principal
from registry.services.turns import RunningLimits

LINE_CHARACTERS = 4000
LINES_A_BUILD = 20_000
# A worker that gave a build back is not handed the same one again at once, so that others may try.
PAUSE_AFTER_RELEASE = timedelta(seconds=60)
# A build is given back however often: after so many attempts, less and less soon to anybody. A pushed bundle's sooner:
# it costs a host the proof again, and its bytes are what most often is at fault.
QUICK_ATTEMPTS, QUICK_PROOFS = 10, 5
LONGEST_PAUSE = timedelta(hours=1)


@dataclass(frozen=True)
class Claimed:
    """The build, now running, with the profile it is for and the token of its attempt."""

    build: BuildRow
    profile: Profile
    token: str
    measurements: Blob | None = None  # what its tuning may begin with


def claim(
    request: ClaimRequest,
    *,
    by: Principal,
    lease: timedelta,
    token_lives: timedelta,
    limits: RunningLimits,
    now: datetime,
    session: Session,
) -> Claimed | str:
    """Hand out the best waiting build that fits the worker; a string says why there is none.

    Best: the build that the worker asks for by name if it still waits, then as `registry.services.turns` says. Raises
    Forbidden, and InvalidInput for a worker that has not registered these profiles.
    """
    by.require(Scope.CLAIM)
    _require_registered(request, now=now, session=session)
    queue.take_turns(session)
    candidates = Candidates(request, by=by, limits=limits, now=now, session=session)
    reasons = candidates.reasons
    for row, profile in candidates:
        if pause := _paused(row, worker=request.worker, now=now):
            reasons.append(f"build {row.id}: {pause}")
            continue
        lacks = unreadable.reasons([row], session).values()
        misfits = "; ".join((*waiting.misfits(row.spec, factors=row.factors, profile=profile), *lacks))
        if misfits:
            reasons.append(f"build {row.id}: {misfits}")
            rows.update_build(row, session=session, waiting=misfits)
            continue
        if _taken(row, worker=request.worker, until=now + lease, now=now, session=session):
            token = _issue(row, expires_at=now + token_lives, now=now, session=session)
            queue.note_claim(row.namespace, now=now, session=session)
            return Claimed(row, profile, token, measurements.find(row, profile, session))
    return "; ".join(reasons[:5]) or f"no build waits for {', '.join(request.profiles)}"


def renew(build: str, *, by: Principal, lease: timedelta, now: datetime, session: Session) -> RenewReply:
    """Extend the lease that `by` holds. For a cancelled build the reply says to stop.

    Raises Forbidden, and LeaseLost when the build was given to another attempt: the caller must stop, because its
    upload would be refused at publish.
    """
    return _extend(build, by=by, lease=lease, now=now, session=session)


def report(
    build: str, request: ProgressRequest, *, by: Principal, lease: timedelta, now: datetime, session: Session
) -> RenewReply:
    """Note where the attempt stands, keep its log lines, and extend the lease. Raises as `renew` does."""
    changes: dict[str, Any] = {"step": request.step[:200]} if request.phase or request.step else {}
    if request.phase is not None:
        changes["phase"] = request.phase
    reply = _extend(build, by=by, lease=lease, now=now, session=session, **changes)
    if request.lines and reply.stop is None:
        keep_lines(build, request.lines, now=now, session=session)
    return reply


def fail(build: str, request: FailRequest, *, by: Principal, now: datetime, session: Session) -> BuildView:
    """End the build with what its worker says. Said twice is once. Raises as `require_held` does."""
    row = find_own(build, by=by, session=session)
    if row.state is BuildState.FAILED and row.attempt == by.attempt:
        return view_of(row)
    require_held(row, by=by, now=now)
    changes = {"error": request.error, "report": request.report, "finished_at": now}
    if not rows.advance_build(row, BuildEvent.FAIL, session=session, **changes):
        raise lease_lost(row)
    reject_pushed(row, reason=f"the proof failed: {request.error.message}", session=session)
    return view_of(row)


def release(build: str, request: ReleaseRequest, *, by: Principal, now: datetime, session: Session) -> BuildView:
    """Give the build back to the queue. Said twice is once. Raises as `require_held` does."""
    row = find_own(build, by=by, session=session)
    if row.state is BuildState.QUEUED and row.attempt == by.attempt and row.released_at is not None:
        return view_of(row)
    require_held(row, by=by, now=now)
    worker = row.worker
    changes = {
        "released_by": worker,
        "released_at": now,
        "setback": f"{worker} gave it back: {request.reason}"[:1000],
        "sent_at": now - timedelta(days=1),  # the sweeper sends a ticket at once
        "host_faults": row.host_faults + request.host_fault,
        "shutdowns": row.shutdowns + (request.reason == SHUTTING_DOWN),
        **WAITING_AGAIN,
    }
    if not rows.advance_build(row, BuildEvent.RELEASE, session=session, **changes):
        raise lease_lost(row)
    # The log keeps the reason of every attempt; the row, that of the last.
    keep_lines(build, (f"attempt {row.attempt}: {row.setback}",), now=now, session=session)
    return view_of(row)


WAITING_AGAIN = {"worker": None, "lease_expires_at": None, "phase": None, "step": "", "started_at": None}


def find_own(build: str, *, by: Principal, session: Session) -> BuildRow:
    """The build that the token is bound to. Raises Forbidden for any other token."""
    if by.build is None or by.build != build:
        raise Forbidden(
            f"this token is not the one that a claim gave for build {build}",
            hint="claim the build, and use the token of that claim",
        )
    row = rows.find_build(build, session)
    if row is None:
        raise build_not_found(build)
    return row


def require_held(row: BuildRow, *, by: Principal, now: datetime) -> None:
    """Raises LeaseLost unless the attempt of `by` holds the build, and BuildFinished where that attempt has ended."""
    if row.attempt != by.attempt:
        raise lease_lost(row)
    if row.state.finished:
        raise finished(row)
    if row.state is not BuildState.RUNNING or row.lease_expires_at is None or row.lease_expires_at <= now:
        raise lease_lost(row)


def require_attempt(*, by: Principal, now: datetime, session: Session) -> None:
    """Raises as `require_held` does for the token of an attempt; any other token has none to lose."""
    if by.build is not None:
        require_held(find_own(by.build, by=by, session=session), by=by, now=now)


def lease_lost(row: BuildRow) -> LeaseLost:
    return LeaseLost(
        f"the lease on build {row.id} is lost: it is {row.state}, at attempt {row.attempt}",
        hint="stop working on it; another attempt builds it",
        details={"state": row.state, "attempt": row.attempt},
    )


def _require_registered(request: ClaimRequest, *, now: datetime, session: Session) -> None:
    known = set(fleet_rows.profiles_of(request.worker, session))
    unknown = [profile for profile in request.profiles if profile not in known]
    if unknown or not request.profiles:
        raise InvalidInput(
            f"worker {request.worker} claims for {', '.join(request.profiles) or 'no profile'}, registered are "
            f"{', '.join(sorted(known)) or 'none'}",
            hint="register the worker with its profiles first",
        )
    fleet_rows.touch_worker(request.worker, now=now, session=session)


def _paused(row: BuildRow, *, worker: Name, now: datetime) -> str:
    """Why a build that was given back a moment ago is not handed out yet; empty where it may be."""
    if row.released_at is None:
        return ""
    since = abs(now - row.released_at)
    if row.released_by == worker and since < PAUSE_AFTER_RELEASE:
        return "this worker gave it back just now"
    # Lost leases have an end of their own, and a worker that is told to end says nothing of the build.
    counted = row.attempt - row.lost_leases - row.shutdowns
    more = counted - (QUICK_ATTEMPTS if row.requalify is None else QUICK_PROOFS)
    if more <= 0 or since >= min(PAUSE_AFTER_RELEASE * 2 ** min(more, 10), LONGEST_PAUSE):
        return ""
    return f"it was given back after attempt {row.attempt}, and the next one waits for a while"


def _taken(row: BuildRow, *, worker: Name, until: datetime, now: datetime, session: Session) -> bool:
    """Compare-and-set: of several workers that read this row as waiting, one gets it."""
    return rows.advance_build(
        row,
        BuildEvent.CLAIM,
        session=session,
        attempt=row.attempt + 1,
        worker=worker,
        lease_expires_at=until,
        started_at=now,
        waiting="",
        released_by=None,
        released_at=None,
    )


def _issue(row: BuildRow, *, expires_at: datetime, now: datetime, session: Session) -> str:
    return tokens.issue(
        f"attempt {row.attempt} of build {row.id}",
        scopes=(Scope.BUILD,),
        namespaces=(row.namespace,),
        build=row.id,
        attempt=row.attempt,
        expires_at=expires_at,
        now=now,
        session=session,
    )


def _extend(build: str, *, by: Principal, lease: timedelta, now: datetime, session: Session, **changes) -> RenewReply:
    row = find_own(build, by=by, session=session)
    if row.state is BuildState.CANCELLED and row.attempt == by.attempt:
        return RenewReply(lease_expires_at=now, stop=row.error.message if row.error else "cancelled")
    require_held(row, by=by, now=now)
    if not rows.update_build(row, session=session, lease_expires_at=now + lease, **changes):
        # Cancelled, expired or claimed between the two statements: what it is now decides.
        return _extend(build, by=by, lease=lease, now=now, session=session, **changes)
    if row.worker is not None:
        fleet_rows.touch_worker(row.worker, now=now, session=session)
    return RenewReply(lease_expires_at=now + lease)


def keep_lines(build: str, lines: tuple[str, ...], *, now: datetime, session: Session) -> None:
    """Append to the log, up to LINES_A_BUILD: the last one says that the rest is missing."""
    first = rows.count_lines(build, session)
    room = LINES_A_BUILD - first
    if room <= 0:
        return
    kept = [line[:LINE_CHARACTERS] for line in lines[:room]]
    if len(lines) >= room:
        kept[-1] = f"[the log ends here: it may have {LINES_A_BUILD} lines]"
    rows.add_lines(
        [BuildLineRow(build=build, sequence=first + index, at=now, text=line) for index, line in enumerate(kept)],
        session,
    )
