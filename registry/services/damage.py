"""Damage: bundles whose bytes cannot be had are out of selection with the reason, until the right bytes are back.

    stored → deleting → pending → stored
           ^          ^         ^
           |          |         the right bytes were uploaded again, and hashed here whatever the store promises
           |          the wrong bytes are gone from the store: now anybody who has the right ones may upload them
           its bundles are out of selection, in the same transaction

While wrong bytes lie in the store the blob is never pending: an upload would find something there already, and a store
that compares digests by itself is believed. Where a crash leaves a blob half removed, the sweeper ends it (`heal`).
"""

import secrets
import time
from collections.abc import Sequence
from datetime import timedelta

import structlog

from aot.schema.digest import Digest
from registry.db import damage as rows
from registry.deps import Deps
from registry.services import blobs

MOST_A_PASS = 200
# Hashing may take long, and a sweeper has more to do: what is not ended by then is the next pass's.
HEAL_SECONDS = 15.0
# Removing is one request: whoever has not ended it by then has died.
STUCK = timedelta(minutes=10)
log = structlog.get_logger()


def of_missing(missing: Sequence[Digest]) -> str | None:
    """The reason, None for no damage."""
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"the object store lacks {missing[0]}{more}"


def quarantine(digest: Digest, *, reason: str, deps: Deps) -> tuple[Digest, ...] | None:
    """Take the blob out with every bundle that names it, and its bytes from the store; return the bundles.

    None where it is not stored any more. Raises StorageUnavailable; the blob is out then, and `heal` removes its bytes.
    """
    now = deps.clock()
    with deps.sessions.transaction() as session:
        if not rows.begin_removal(digest, now=now, session=session):
            return None
        bundles = rows.damage_bundles(digest, reason=reason, session=session)
    deps.store.delete(digest)
    with deps.sessions.transaction() as session:
        rows.end_removal(digest, since=now, session=session)
    return bundles


def heal(deps: Deps, *, start: Digest | None = None) -> tuple[Digest, ...]:
    """Put back the bundles whose bytes have been uploaded again; return them. Raises StorageUnavailable.

    A pass looks at MOST_A_PASS blobs, by digest from `start`, and hashes for HEAL_SECONDS; without `start` it begins
    anywhere, so that blobs which never come back do not keep the others from their turn.
    """
    _end_removals(deps)
    with deps.sessions.reading() as session:
        if not rows.any_damaged(session):
            return ()
        lacking = rows.lacking_blobs(session, start=start or anywhere(), limit=MOST_A_PASS)
    until = time.monotonic() + HEAL_SECONDS
    for blob in lacking:
        left = max(0.0, until - time.monotonic())
        settle = {"store": deps.store, "sessions": deps.sessions, "clock": deps.clock}
        blobs.settle_upload(blob, **settle, hashing=deps.hashing, seconds=left)
        if time.monotonic() > until:
            break
    with deps.sessions.transaction() as session:
        healed = rows.heal_bundles(session, limit=MOST_A_PASS)
    if healed:
        log.info("bundles-healed", bundles=healed)
    return healed


def _end_removals(deps: Deps) -> None:
    """End what a crash has left between two steps of `quarantine`."""
    now = deps.clock()
    with deps.sessions.reading() as session:
        stuck = rows.half_removed(session, before=now - STUCK, limit=MOST_A_PASS)
    for digest, since in stuck:
        with deps.sessions.transaction() as session:
            if not rows.take_over_removal(digest, since=since, now=now, session=session):
                continue
        deps.store.delete(digest)
        with deps.sessions.transaction() as session:
            rows.end_removal(digest, since=now, session=session)


def anywhere() -> Digest:
    """Where a pass over digests begins that cannot look at all of them."""
    return Digest(f"sha256:{secrets.token_hex(32)}")
