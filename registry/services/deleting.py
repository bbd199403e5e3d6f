"""Deletes of blobs: the row says so first, and what goes is what lay there while it said so.

    marked    `deleting`, committed: nobody counts on the bytes any more (`BlobPending`), nor on what is put meanwhile
    looked at which version lies there
    deleted   that version alone, while no other process deletes the same blob, and the row still says what it said

Whoever was stopped between two of these steps, for however long, finds the row changed. Where it was stopped between
the look at the row and the delete and has lost its connection too, the version is another by then: the blob stays.

PostgreSQL keeps the turn of one blob while the store deletes. SQLite has one writer, whom nobody may keep for as long
as a store takes: there the turn is this process's own, and of several processes at one file each relies on the version.
"""

import threading
from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy import text
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.db import blobs as rows
from registry.db.session import hold_turn
from registry.deps import Deps

# Whoever deletes the same blob is at one or two requests; a replica that hangs in them must not hang the others.
LOCK_SECONDS = 60
# Of this process, one for many blobs: what waits for another blob's delete waits for one request.
_TURNS = tuple(threading.Lock() for _ in range(64))
log = structlog.get_logger()


def delete_marked(digest: Digest, *, since: datetime, end: Callable[[Session], bool], deps: Deps) -> bool:
    """Delete the bytes of a blob that was marked as deleting at `since`, then `end`, a compare-and-set on the mark.

    Returns what `end` returns; False where somebody else has taken the blob over, or its bytes are others by now: then
    the mark is left, for a later pass. Raises StorageUnavailable.
    """
    version = deps.store.version(digest)
    if not deps.sessions.shared:
        return _delete_alone(digest, version, since=since, end=end, deps=deps)
    with deps.sessions.transaction() as session:
        session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        hold_turn(session.connection(), f"delete {digest}")
        if not rows.is_deleting(digest, since=since, session=session):
            return False
        return _delete(digest, version, deps) and end(session)


def _delete_alone(
    digest: Digest, version: str | None, *, since: datetime, end: Callable[[Session], bool], deps: Deps
) -> bool:
    """As `delete_marked`, with no transaction open while the store is asked."""
    with _TURNS[int(digest.hex[:2], 16) % len(_TURNS)]:
        with deps.sessions.reading() as session:
            if not rows.is_deleting(digest, since=since, session=session):
                return False
        if not _delete(digest, version, deps):
            return False
        with deps.sessions.transaction() as session:
            return end(session)


def _delete(digest: Digest, version: str | None, deps: Deps) -> bool:
    if version is not None and not deps.store.delete(digest, version=version):
        log.warning("put-while-it-was-deleted", digest=digest)
        return False
    return True
