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
from datetime import datetime, timedelta
from functools import partial

import structlog

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from registry.db import damage as rows
from registry.db.session import tried_again
from registry.deps import Deps
from registry.services import blobs, deleting, holding
from registry.services.hashing import Hashing

MOST_A_PASS = 200
# Hashing may take long, and a sweeper has more to do: what is not ended by then is the next pass's.
HEAL_SECONDS = 15.0
MOST_TRIES = 5  # of what takes one blob out, which an older registry may be in the way of (`tried_again`)
# An upload that nobody has asked for since is looked at no more, but for what a damaged bundle needs.
ASKED_FOR = timedelta(days=1)
log = structlog.get_logger()


def of_missing(missing: Sequence[Digest]) -> str | None:
    """The reason, None for no damage."""
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"the object store lacks {missing[0]}{more}"


def quarantine(blob: rows.StoredBlob, *, reason: str, deps: Deps) -> tuple[Digest, ...] | None:
    """Take the blob out with every bundle that names it, and its bytes from the store; return the bundles.

    None where it is not stored any more, or was stored again since it was seen: other bytes were found wrong then.
    Raises StorageUnavailable; the blob is out then, and `heal` removes its bytes.
    """
    now = deps.clock()

    def take_out() -> tuple[Digest, ...] | None:
        with deps.sessions.transaction() as session:
            if not rows.begin_removal(blob, now=now, session=session):
                return None
            return rows.damage_bundles(blob.digest, reason=reason, session=session)

    bundles = tried_again(take_out, tries=MOST_TRIES)
    if bundles is not None:
        _remove(blob.digest, since=now, deps=deps)
    return bundles


def quarantine_if_wrong(digest: Digest, *, namespace: Namespace, deps: Deps) -> bool:
    """Hash a blob of the namespace, and take it out where its bytes are others: True then.

    False where it is right, missing, or not stored. Raises StorageUnavailable.
    """
    with deps.sessions.reading() as session:
        blob = rows.find_stored(digest, namespace=namespace, session=session)
    if blob is None or deps.store.stat(digest) is None:
        return False
    # Of one thread alone: the sweeper's own is in use. Other bytes are read once more before they count as wrong.
    hashed = Hashing().hash((digest,), digest, lambda: (deps.store.open(digest), ""))
    assert hashed is not None, "it was given all the time that it takes"
    if hashed.hex == digest.hex and hashed.size_bytes == blob.size_bytes:
        return False
    reason = f"the object store holds other bytes for {digest}: {hashed.size_bytes} of {blob.size_bytes} bytes"
    bundles = quarantine(blob, reason=reason, deps=deps)
    if bundles is not None:
        log.error("blob-damaged", digest=digest, reason=reason, bundles=bundles)
    return bundles is not None


def _remove(digest: Digest, *, since: datetime, deps: Deps) -> None:
    deleting.delete_marked(digest, since=since, end=partial(rows.end_removal, digest, since=since), deps=deps)


def heal(deps: Deps, *, start: Digest | None = None) -> tuple[Digest, ...]:
    """Put back the bundles whose bytes have been uploaded again; return them. Raises StorageUnavailable.

    A pass looks at MOST_A_PASS blobs, by digest from `start`, and hashes for HEAL_SECONDS; without `start` it begins
    anywhere, so that blobs which never come back do not keep the others from their turn.
    """
    _end_removals(deps)
    lacking, damaged = _lacking(deps, start=start or anywhere())
    until = time.monotonic() + HEAL_SECONDS
    for blob in lacking:
        left = max(0.0, until - time.monotonic())
        settle = {"store": deps.store, "sessions": deps.sessions, "clock": deps.clock}
        blobs.settle_upload(blob, **settle, hashing=deps.hashing, seconds=left)
        if time.monotonic() > until:
            break
    if not damaged:
        return ()
    with deps.sessions.transaction() as session:
        healed = rows.heal_bundles(session, limit=MOST_A_PASS)
    if healed:
        log.info("bundles-healed", bundles=healed)
    return healed


def _lacking(deps: Deps, *, start: Digest) -> tuple[Sequence[Blob], bool]:
    """What was taken out and may be there again, and whether a bundle is damaged."""
    page = {"start": start, "limit": MOST_A_PASS}
    with deps.sessions.reading() as session:
        damaged = rows.any_damaged(session)
        lacking = rows.lacking_blobs(session, **page) if damaged else ()
        again = rows.asked_for_again(session, opened_since=deps.clock() - ASKED_FOR, **page)
    return list(dict.fromkeys((*lacking, *again))), damaged


def _end_removals(deps: Deps) -> None:
    """End what a crash has left between two steps of `quarantine`, or held."""
    holding.end_half_done(deps)
    now = deps.clock()
    with deps.sessions.reading() as session:
        stuck = rows.half_removed(session, **holding.stuck(now), limit=MOST_A_PASS)
    for digest, since in stuck:
        with deps.sessions.transaction() as session:
            if not rows.take_over_removal(digest, since=since, now=now, session=session):
                continue
        _remove(digest, since=now, deps=deps)


def anywhere() -> Digest:
    """Where a pass over digests begins that cannot look at all of them."""
    return Digest(f"sha256:{secrets.token_hex(32)}")
