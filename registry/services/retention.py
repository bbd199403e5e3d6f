"""Retention: what nobody needs any more goes, bundles first, then their bytes.

    bundle   tagged: stays. Untagged: goes AOT_KEEP_SECONDS after its last use, withdrawn or rejected
             AOT_KEEP_OUT_SECONDS after that; pushed and not proven: rejected after AOT_KEEP_PENDING_SECONDS
    upload   in parts, begun and last asked for before the grace period: given up, its parts removed; so is what arrived
             then and became no blob
    blob     named by no bundle, by no live build and lately opened by no upload: condemned
             condemned for the grace period: deleting, then deleted from the store, then forgotten

A lock pins by digest through its use (`registry.services.uses`), and for good where its bundles are tagged (`aot tag
--lock`); that a tag was moved away or removed is a use, too (`registry.services.tags`).

Links are handed out only for blobs that some bundle or live build names, so none can be live longer than the grace
period after the blob was condemned; it is never shorter than a link's life and a margin. Those of a claim to large
blobs may be, which is of use to nobody: their build keeps the blobs for as long as it runs. Whoever uploads or
publishes holds the blob's row and lets a condemned blob live; a blob that is being deleted answers BlobPending until
it is gone. Several sweepers may run at once.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.clock import CLOCK_MARGIN
from registry.db import records as record_rows
from registry.db import retention as rows
from registry.db import retention_plan as plan_rows
from registry.db.models import BlobRow
from registry.db.session import tried_again
from registry.deps import Deps
from registry.services import abandoned, deleting, holding, records, unproven
from registry.services.one_by_one import one_by_one

AT_ONCE = 200
DELETE_AT_ONCE = 50
MOST_TRIES = 5  # of one step, which an older registry may be in the way of (`tried_again`)
DELETE_SECONDS = 60.0
# Of one kind of what expires, in a sweeper's pass: leases are looked at between two.
SWEEPER_SECONDS = 10.0
log = structlog.get_logger()


@dataclass(frozen=True)
class Retained:
    """What one pass removed, or in a dry run would."""

    bundles: tuple[Digest, ...] = ()
    condemned: tuple[Digest, ...] = ()
    condemned_bytes: int = 0
    deleted: tuple[Digest, ...] = ()
    freed_bytes: int = 0
    rejected: tuple[Digest, ...] = ()  # pushed, and proven by nobody in their time; they go later
    given_up: int = 0  # uploads that nobody went on with
    unfinished: bool = False  # there was not time for everything


@dataclass
class _Pass:
    deps: Deps
    seconds: float
    done: Retained = field(default_factory=Retained)

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        # The last as in `plan`: what its build was to read is kept until the next pass.
        return (
            lambda: self.repeat(self.expire),
            lambda: self.repeat(lambda: bool(records.forget_due(self.deps))),
            lambda: self.repeat(self.condemn),
            lambda: _date_condemned(self.deps),
            lambda: self.repeat(self.delete),
            self.give_up,
            self.reject,
        )

    def repeat(self, step: Callable[[], bool]) -> None:
        """Take a step until it says that there is no more, or the time of steps of this kind is over."""
        until = time.monotonic() + self.seconds
        while tried_again(step, tries=MOST_TRIES):
            if time.monotonic() >= until:
                self.done = replace(self.done, unfinished=True)
                return

    def expire(self) -> bool:
        """True while there may be more."""
        now, settings = self.deps.clock(), self.deps.settings
        bounds = {"unused_since": now - settings.keep, "out_since": now - settings.keep_out, "limit": AT_ONCE}
        with self.deps.sessions.transaction() as session:
            digests = tuple(row.digest for row in rows.hold_expired_bundles(session, **bounds))
            if digests:
                session.expunge_all()
                rows.delete_bundles(digests, session)
                record_rows.begin_forgetting(digests, now=now, session=session)
        self.done = replace(self.done, bundles=self.done.bundles + digests)
        looked = self.deps.condemned
        looked.again = looked.again or bool(digests and looked.after)
        return bool(digests)

    def condemn(self) -> bool:
        """Condemn among the next candidates; True while there may be more."""
        # Where the last pass had no more time: what builds need stays a candidate, and would be all that it looks at.
        looked = self.deps.condemned
        now, after = self.deps.clock(), looked.after
        bounds = {"opened_before": now - self.deps.settings.grace_of_blobs, "after": after, "limit": AT_ONCE}
        with self.deps.sessions.transaction() as session:
            last = rows.last_candidate(session, **bounds)
            if last is None:
                again, looked.after, looked.again = looked.again, None, False
                return again
            found = rows.hold_unneeded_blobs(session, needed=_needed(session), **bounds)
            rows.condemn([row.digest for row in found], now=now, session=session)
        looked.after = last
        condemned = self.done.condemned + tuple(row.digest for row in found)
        size = self.done.condemned_bytes + sum(row.size_bytes for row in found if row.stored_at)
        self.done = replace(self.done, condemned=condemned, condemned_bytes=size)
        return True

    def delete(self) -> bool:
        """Mark, commit, delete from the store, forget: a crash between any two is mended by a later pass.

        True while there may be more.
        """
        deps = self.deps
        since, begun = deps.clock(), time.monotonic()
        with deps.sessions.transaction() as session:
            due = rows.hold_condemned(session, **_bounds(deps), limit=DELETE_AT_ONCE)
            rows.begin_delete([row.digest for row in due], now=since, session=session)
        gone: list[BlobRow] = []
        for row in due:
            if time.monotonic() - begun > DELETE_SECONDS:
                break  # another pass may take them over before long: it must not meet this one
            forget = partial(rows.forget_blob, row.digest, since=since)
            if deleting.delete_marked(row.digest, since=since, end=forget, deps=deps):
                gone.append(row)
        deleted = self.done.deleted + tuple(row.digest for row in gone)
        freed = self.done.freed_bytes + sum(row.size_bytes for row in gone if row.stored_at)
        self.done = replace(self.done, deleted=deleted, freed_bytes=freed)
        return bool(gone)

    def give_up(self) -> None:
        given_up, left = abandoned.give_up_abandoned(self.deps, seconds=self.seconds)
        self.done = replace(self.done, given_up=given_up, unfinished=self.done.unfinished or left)

    def reject(self) -> None:
        rejected, left = unproven.reject_unproven(self.deps, seconds=self.seconds)
        self.done = replace(self.done, rejected=rejected, unfinished=self.done.unfinished or left)


def retain(deps: Deps, *, seconds: float = math.inf) -> Retained:
    """One pass; after `seconds` it goes on with the next kind of what expires, and says that it is `unfinished`.

    Raises StorageUnavailable, once every kind had its turn; what was done stays done, and the next pass goes on.
    """
    deps.uses.flush(deps.sessions)
    holding.end_half_done(deps)  # what is held is nobody else's to remove
    going = _Pass(deps, seconds)
    try:
        one_by_one(going.steps, lambda step: step(), most_failures=len(going.steps))
    finally:
        if (done := going.done) != Retained():
            counts = {"condemned": len(done.condemned), "freed_bytes": done.freed_bytes, "unfinished": done.unfinished}
            log.info("retained", bundles=done.bundles, rejected=done.rejected, **counts)
    return going.done


def plan(deps: Deps) -> Retained:
    """What `retain` would do now. Only reads, so nobody waits for it and it waits for nobody."""
    now, settings = deps.clock(), deps.settings
    expired = rows.expired(unused_since=now - settings.keep, out_since=now - settings.keep_out)
    named = plan_rows.named_by_others(expired)
    given_up, rejected = len(abandoned.find_abandoned(deps)), unproven.find_unproven(deps)
    with deps.sessions.reading() as session:
        condemned = plan_rows.unneeded_blobs(
            session, opened_before=now - settings.grace_of_blobs, needed=_needed(session), named=named
        )
        due = plan_rows.due_blobs(session, **_bounds(deps), named=named)
        return Retained(
            bundles=tuple(plan_rows.expired_bundles(session, expired=expired)),
            condemned=tuple(row.digest for row in condemned),
            condemned_bytes=sum(row.size_bytes for row in condemned if row.stored_at),
            deleted=tuple(row.digest for row in due),
            freed_bytes=sum(row.size_bytes for row in due if row.stored_at),
            rejected=rejected,
            given_up=given_up,
        )


def _needed(session: Session) -> set[Digest]:
    """What the builds that wait or run will read."""
    return {blob.digest for spec in rows.specs_of_live_builds(session) for blob in spec.blobs}


def _bounds(deps: Deps) -> dict[str, Any]:
    now = deps.clock()
    return {"before": now - deps.settings.grace_of_blobs, "stuck": holding.stuck(now)}


def _date_condemned(deps: Deps) -> None:
    """Make true that what was condemned while the clock was ahead waits no longer than the grace period from now on."""
    dated = AT_ONCE
    while dated == AT_ONCE:
        now = deps.clock()
        with deps.sessions.transaction() as session:
            dated = rows.date_from_now(session, now=now, or_after=now + CLOCK_MARGIN, limit=AT_ONCE)
