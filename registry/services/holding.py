"""Work of the object store on one blob, with no transaction open meanwhile: nobody who writes waits for a store.

    held      the row says `deleting`, committed: whoever wants the blob is told to come again (`BlobPending`)
    worked    while no other process works on or deletes the same blob
    released  the row says what it said; who has looked at the blob before counts on nothing (`rows.is_as_seen`)

PostgreSQL keeps the turn of one blob, for which only another sweeper waits. SQLite has one writer, whom nobody may keep
for as long as a store takes: there the turn is this process's own. Whoever was killed in between leaves the blob held;
a later pass releases it (`end_half_done`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from sqlalchemy import text
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.db import held as rows
from registry.db.session import Sessions, hold_turn
from registry.deps import Deps

# Whoever deletes the same blob is at one or two requests; a replica that hangs in them must not hang the others.
LOCK_SECONDS = 60
# No request to a store takes as long: whoever has not ended by then has died.
STUCK = timedelta(minutes=10)
AT_ONCE = 200
# Of this process, one for many blobs: what waits for another blob waits for a few requests.
_TURNS = tuple(threading.Lock() for _ in range(64))
log = structlog.get_logger()


@contextmanager
def turn(digest: Digest, sessions: Sessions) -> Iterator[None]:
    """Wait until nobody else works on the bytes of this blob. Raises StorageUnavailable where that takes too long."""
    if not sessions.shared:
        with _TURNS[int(digest.hex[:2], 16) % len(_TURNS)]:
            yield
        return
    with sessions.transaction() as session:
        session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        hold_turn(session.connection(), f"delete {digest}")
        yield


@contextmanager
def held(
    digest: Digest, hold: Callable[[Session], rows.Held | None], *, sessions: Sessions
) -> Iterator[rows.Held | None]:
    """Hold the blob until the block ends, however it does. None, where `hold` says so: it is not to be worked on."""
    with turn(digest, sessions):
        with sessions.transaction() as session:
            mine = hold(session)
        try:
            yield mine
        finally:
            if mine is not None:
                with sessions.transaction() as session:
                    rows.release(mine, session)


def end_half_done(deps: Deps) -> int:
    """Release what a crash has left held; return how many. Raises StorageUnavailable."""
    before = deps.clock() - STUCK
    with deps.sessions.reading() as session:
        left = rows.half_done(session, before=before, limit=AT_ONCE)
    for one in left:
        with turn(one.digest, deps.sessions), deps.sessions.transaction() as session:
            rows.release(one, session)
        log.warning("blob-left-held", digest=one.digest, since=one.since)
    return len(left)
