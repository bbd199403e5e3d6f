"""The sweeper: what time does to builds. Several may run at once; every change is a compare-and-set.

Leases that ran out put their build back into the queue, or end it after too many; queued builds that nobody claimed
get another ticket, since a message may be lost; waiting builds say why; uploads are hashed where the store does not.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile, zip_longest
from typing import Any

import structlog
from sqlalchemy.orm import Session

from aot.errors import AotError, BackendFailed, Unavailable
from aot.keys import queue_for
from aot.schema.digest import Digest
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.spec import Blob
from aot.schema.state import BuildEvent
from aot.schema.wire.builds import Ticket
from aot.schema.wire.errors import ErrorBody
from registry.clock import CLOCK_MARGIN
from registry.db import blobs as blob_rows
from registry.db import builds as rows
from registry.db import fleet as fleet_rows
from registry.db import queue
from registry.db import tokens as token_rows
from registry.db.bundles import hold_bundles
from registry.db.models import BuildRow
from registry.db.session import tried_again
from registry.deps import BEGINNING, Deps
from registry.services import arrivals, blobs, damage, records, unreadable, waiting
from registry.services.builds import reject_pushed
from registry.services.claims import WAITING_AGAIN, keep_lines
from registry.services.one_by_one import one_by_one
from registry.storage.parts import Arrival, KeepsIncoming

HASH_UPLOADS_FOR = timedelta(days=1)
MOST_HASHED = 200
# Leases are looked at between two passes, so a pass hashes no longer than this, and no blob longer than SLICE_SECONDS:
# the next pass goes on with it, and small ones have their turn meanwhile.
HASH_SECONDS = 15.0
SLICE_SECONDS = 5.0
# Nor does it wait longer for a broker that hangs: each ticket would take seconds.
SEND_SECONDS = 15.0
MOST_EXPLAINED = 500
KEEP_TOKENS = timedelta(days=1)
log = structlog.get_logger()


@dataclass(frozen=True)
class Swept:
    """What one pass changed."""

    expired: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    resent: tuple[str, ...] = ()
    hashed: int = 0
    tokens: int = 0
    healed: tuple[Digest, ...] = ()
    recorded: int = 0


def sweep(deps: Deps) -> Swept:
    """One pass over everything that time changes.

    A step that fails keeps none of the others from its turn. After the last one it raises the first error that is none
    of a service that is away (it is logged where it came up), else the first StorageUnavailable.
    """
    done: dict[str, Any] = {}
    broken: list[Exception] = []

    def take(step: tuple[str, Callable[[Deps], Any]]) -> None:
        name, act = step
        try:
            done[name] = tried_again(lambda: act(deps))
        except Unavailable:
            raise
        except Exception as error:  # a bug, or a store that refuses the registry: others have their turn before it ends
            log.exception("step-failed", step=name)
            broken.append(error)

    try:
        one_by_one(STEPS, take, most_failures=len(STEPS))
    except Unavailable:
        if not broken:
            raise
    finally:
        expired, exhausted = done.pop("leases", ((), ()))
        swept = Swept(expired, exhausted, **{name: count for name, count in done.items() if name != "explained"})
        if swept != Swept():
            told = {"resent": swept.resent, "hashed": swept.hashed, "tokens": swept.tokens}
            log.info("swept", expired=expired, exhausted=exhausted, **told)
    if broken:
        raise broken[0]
    return swept


def expire_leases(deps: Deps) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the builds that wait again, and those that failed for good."""
    now, expired, exhausted = deps.clock(), [], []
    with deps.sessions.transaction() as session:
        # Who holds a lease of before the clock was set back renews it; a ticket that was sent then is sent again.
        rows.shorten_leases(session, over=now + deps.settings.lease + CLOCK_MARGIN, to=now + deps.settings.lease)
        over = rows.expired_builds(session, now=now)
        hold_bundles((row.requalify for row in over if row.requalify), session)
        for row in over:
            # Somebody may renew between the two statements: then the lease is another one.
            same = BuildRow.lease_expires_at == row.lease_expires_at
            lost = row.lost_leases + 1
            if lost < deps.settings.max_attempts:
                text = f"the lease of {row.worker} ran out at attempt {row.attempt}"
                changes = {
                    **WAITING_AGAIN,
                    "lost_leases": lost,
                    "setback": text,
                    "sent_at": now - timedelta(days=1),
                }
                if rows.advance_build(row, BuildEvent.EXPIRE, session=session, also=same, **changes):
                    # The log keeps the reason of every attempt; the row, that of the last.
                    keep_lines(row.id, (f"attempt {row.attempt}: {text}",), now=now, session=session)
                    expired.append(row.id)
            else:
                error = ErrorBody.of(
                    BackendFailed(
                        f"the lease ran out {lost} times, the last at attempt {row.attempt} on {row.worker}",
                        hint="its workers died or lost the network while building; see their logs, and submit again",
                        details={"attempts": row.attempt, "phase": row.phase},
                    )
                )
                changes = {"lost_leases": lost, "error": error, "finished_at": now}
                if rows.advance_build(row, BuildEvent.EXHAUST, session=session, also=same, **changes):
                    reject_pushed(row, reason=error.message, session=session)
                    exhausted.append(row.id)
    return tuple(expired), tuple(exhausted)


def explain_waiting(deps: Deps) -> int:
    """Say of queued builds why they wait; return of how many that has changed.

    A pass looks at MOST_EXPLAINED and the next one goes on after them, so that a long queue does not keep writers out.
    """
    now = deps.clock()
    with deps.sessions.reading() as session:
        found = queue.queued_after(deps.explained.after, session, limit=MOST_EXPLAINED)
        live = fleet_rows.live_profiles(session, seen_since=now - deps.settings.worker_lives)
        profiles = {name: fleet_rows.find_profile(name, session) for name in {row.profile for row in found}}
        # Without a live worker that is the reason; bundles have many blobs.
        lacks = unreadable.reasons([row for row in found if row.profile in live], session)
    deps.explained.after = (found[-1].profile, found[-1].id) if len(found) == MOST_EXPLAINED else BEGINNING
    changed = []
    for row in found:
        # As stored, which may be out of date for a CPU target that no worker is: of one without, only the name is read.
        profile = profiles[row.profile]
        assert profile is not None, "a build's profile is never removed"
        live_now = profile.name in live
        known = {"live": live_now, "before": row.waiting, "lacks": lacks.get(row.id, "")}
        reason = waiting.reason(row.spec, factors=row.factors, profile=profile, **known)
        if reason != row.waiting:
            changed.append((row, reason))
    if not changed:
        return 0
    with deps.sessions.transaction() as session:
        held = set(session.scalars(rows.free(BuildRow.id.in_([row.id for row, _ in changed]))))
        return sum(queue.say_waiting(row, reason, session) for row, reason in changed if row.id in held)


def resend_tickets(deps: Deps) -> tuple[str, ...]:
    """Send tickets that nobody has followed for a while: one for every worker that has nothing to do.

    A ticket wakes a worker, which then claims what is best; more tickets than idle workers would only pile up in the
    broker while builds take their hours. Tickets leave after the commit; one that cannot be sent, or has no turn within
    SEND_SECONDS, is due again after the same while.
    """
    now, due = deps.clock(), []
    before, after = now - deps.settings.resend_after, now + CLOCK_MARGIN
    with deps.sessions.transaction() as session:
        for profile, idle in _idle_workers(deps, session):
            for row in queue.due_tickets(profile.name, session, sent_before=before, or_after=after, limit=idle):
                # Of two sweepers that read the same time, one moves it on.
                if rows.update_build(row, session=session, also=BuildRow.sent_at == row.sent_at, sent_at=now):
                    due.append((queue_for(profile), row.id))
    until = time.monotonic() + SEND_SECONDS
    for name, build in takewhile(lambda _: time.monotonic() <= until, due):
        try:
            deps.queue.send(name, Ticket(build=build))
        except AotError as error:
            log.warning("ticket-not-sent", build=build, queue=name, code=error.code, reason=error.message)
    return tuple(build for _, build in due)


def _idle_workers(deps: Deps, session: Session) -> tuple[tuple[Profile, int], ...]:
    """How many live workers without a build each profile has; profiles without one are absent."""
    busy = queue.busy_workers(session)
    idle: dict[Name, int] = {}
    for profile, worker in fleet_rows.live_workers(session, seen_since=deps.clock() - deps.settings.worker_lives):
        if worker not in busy:
            idle[profile] = idle.get(profile, 0) + 1
    found = {name: fleet_rows.find_profile(name, session) for name in sorted(idle)}
    return tuple((profile, idle[name]) for name, profile in found.items() if profile is not None)


def hash_uploads(deps: Deps, *, start: Digest | None = None) -> int:
    """Hash what has arrived and no store has compared: blobs in parts, and all where the store does not do it.

    Returns how many blobs are stored now. A pass looks at MOST_HASHED, by digest from `start`, and ends after
    HASH_SECONDS; without `start` it begins anywhere, so that uploads which never arrive keep nobody from his turn, or,
    every other time, with what was begun.
    """
    in_parts = isinstance(deps.store, KeepsIncoming)
    if deps.store.enforces_checksum and not in_parts:
        return 0
    start = start or deps.hashing.next_begun() or damage.anywhere()
    with deps.sessions.reading() as session:
        pending = blob_rows.pending_blobs(
            session,
            opened_since=deps.clock() - HASH_UPLOADS_FOR,
            start=start,
            limit=MOST_HASHED,
            over_bytes=deps.store.largest_put_bytes if in_parts and deps.store.enforces_checksum else -1,
        )
    until = time.monotonic() + HASH_SECONDS
    settled: dict[Hashable, bool] = {}

    def settle(found: Blob | Arrival) -> None:
        seconds = min(SLICE_SECONDS, max(0.0, until - time.monotonic()))
        if isinstance(found, Blob):
            there = {"store": deps.store, "sessions": deps.sessions, "clock": deps.clock, "hashing": deps.hashing}
            settled[found] = blobs.settle_upload(found, **there, seconds=seconds)
            whole = arrivals.complete(found, deps)
        else:
            whole = (found,)
        for arrival in whole:
            if (key := (arrival.namespace, arrival.digest)) not in settled:
                settled[key] = arrivals.settle_arrival(arrival, deps, seconds=seconds)

    # In turns: many of the one kind keep none of the other waiting.
    pairs = zip_longest(_arrivals(deps, start), pending)
    found = (one for pair in pairs for one in pair if one is not None)
    one_by_one(takewhile(lambda _: time.monotonic() <= until, found), settle)
    return sum(settled.values())


def _arrivals(deps: Deps, start: Digest) -> Iterator[Arrival]:
    """What namespaces have put and nobody has hashed, by digest from `start` on, then from the first one."""
    if isinstance(deps.store, KeepsIncoming):
        found = sorted(deps.store.arrivals(), key=lambda arrival: (arrival.digest < start, arrival.digest))
        yield from found[:MOST_HASHED]


def delete_tokens(deps: Deps) -> int:
    """Remove tokens that expired a while ago; return how many."""
    with deps.sessions.transaction() as session:
        return token_rows.delete_expired(session, before=deps.clock() - KEEP_TOKENS)


# Named as in `Swept`; leases give two of its fields.
STEPS: tuple[tuple[str, Callable[[Deps], Any]], ...] = (
    ("leases", expire_leases),
    ("explained", explain_waiting),
    ("resent", resend_tickets),
    ("hashed", hash_uploads),
    ("healed", damage.heal),
    ("recorded", records.write_due),
    ("tokens", delete_tokens),
)
