"""The sweeper: what time does to builds. Several may run at once; every change is a compare-and-set.

Leases that ran out put their build back into the queue, or end it after too many; queued builds that nobody claimed
get another ticket, since a message may be lost; waiting builds say why; uploads are hashed where the store does not.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from aot.errors import AotError, BackendFailed
from aot.keys import queue_for
from aot.schema.digest import Digest
from aot.schema.state import BuildEvent
from aot.schema.wire.builds import Ticket
from aot.schema.wire.errors import ErrorBody
from registry.db import blobs as blob_rows
from registry.db import builds as rows
from registry.db import fleet as fleet_rows
from registry.db import tokens as token_rows
from registry.db.models import BuildRow
from registry.deps import Deps
from registry.services import blobs, damage, records, waiting
from registry.services.builds import reject_pushed
from registry.services.claims import WAITING_AGAIN

HASH_UPLOADS_FOR = timedelta(days=1)
MOST_HASHED = 200
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
    """One pass over everything that time changes. Raises StorageUnavailable."""
    expired, exhausted = expire_leases(deps)
    resent = resend_tickets(deps)
    hashed = hash_uploads(deps)
    healed = damage.heal(deps)
    recorded = records.write_due(deps)
    with deps.sessions.transaction() as session:
        tokens = token_rows.delete_expired(session, before=deps.clock() - KEEP_TOKENS)
    swept = Swept(expired, exhausted, resent, hashed, tokens, healed, recorded)
    if swept != Swept():
        log.info("swept", expired=expired, exhausted=exhausted, resent=resent, hashed=hashed, tokens=tokens)
    return swept


def expire_leases(deps: Deps) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the builds that wait again, and those that failed for good."""
    now, expired, exhausted = deps.clock(), [], []
    with deps.sessions.transaction() as session:
        for row in rows.expired_builds(session, now=now):
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


def resend_tickets(deps: Deps) -> tuple[str, ...]:
    """Say of every queued build why it waits, and send tickets that nobody has followed for a while.

    Tickets leave after the commit. One that cannot be sent is due again after the same while.
    """
    now, due = deps.clock(), []
    with deps.sessions.transaction() as session:
        live = fleet_rows.live_profiles(session, seen_since=now - deps.settings.worker_lives)
        for row, profile_row in rows.queued_builds(session):
            profile = profile_row.profile
            reason = waiting.reason(row.spec, factors=row.factors, profile=profile, live=profile.name in live)
            if reason != row.waiting:
                rows.update_build(row, session=session, waiting=reason)
            # Of two sweepers that read the same time, one moves it on.
            is_due = row.sent_at <= now - deps.settings.resend_after and profile.name in live
            if is_due and rows.update_build(row, session=session, also=BuildRow.sent_at == row.sent_at, sent_at=now):
                due.append((queue_for(profile), row.id))
    for queue, build in due:
        try:
            deps.queue.send(queue, Ticket(build=build))
        except AotError as error:
            log.warning("ticket-not-sent", build=build, queue=queue, code=error.code, reason=error.message)
    return tuple(build for _, build in due)


def hash_uploads(deps: Deps) -> int:
    """Hash what has arrived in a store that does not compare digests itself; return how many blobs are stored now."""
    if deps.store.enforces_checksum:
        return 0
    now: datetime = deps.clock()
    with deps.sessions.reading() as session:
        pending = blob_rows.pending_blobs(session, opened_since=now - HASH_UPLOADS_FOR, limit=MOST_HASHED)
    hashed = 0
    for blob in pending:
        found = blobs.hash_stored(blob, deps.store)
        if found is not None:
            with deps.sessions.transaction() as session:
                hashed += blob_rows.mark_stored(found, now=now, session=session)
    return hashed
