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
from datetime import datetime, timedelta

import structlog
from sqlalchemy import text
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.clock import CLOCK_MARGIN
from registry.db import held as rows
from registry.db.session import Sessions, hold_turn, try_turn
from registry.deps import Deps

# Whoever deletes the same blob is at one or two requests; a replica that hangs in them must not hang the others.
LOCK_SECONDS = 60
# Whoever holds, removes or deletes a blob is at one or two requests, and looks at the clock before each delete: who has
# not ended by then has died.
STUCK = timedelta(minutes=10)
AT_ONCE = 200
# On PostgreSQL a turn ends with its holder's connection, so a hold without one is nobody's. Not at once: a database
# that was restarted has ended the turns of those who live and work.
ORPHANED = timedelta(seconds=30)
# Of this process, one for many blobs: what waits for another blob waits for a few requests.
_TURNS = tuple(threading.Lock() for _ in range(64))
log = structlog.get_logger()


@contextmanager
def turn(digest: Digest, sessions: Sessions) -> Iterator[None]:
    """Wait until nobody else works on the bytes of this blob. Raises StorageUnavailable where that takes too long."""
    if not sessions.shared:
        with _turn_here(digest):
            yield
        return
    with sessions.transaction() as session:
        session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        hold_turn(session.connection(), _name(digest))
        yield


@contextmanager
def _free_turn(digest: Digest, sessions: Sessions) -> Iterator[bool]:
    """The turn if nobody has it, without waiting; False where somebody is at work."""
    if not sessions.shared:
        lock = _turn_here(digest)
        if not lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()
        return
    with sessions.transaction() as session:
        yield try_turn(session.connection(), _name(digest))


def _turn_here(digest: Digest) -> threading.Lock:
    return _TURNS[int(digest.hex[:2], 16) % len(_TURNS)]


def _name(digest: Digest) -> str:
    return f"delete {digest}"


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
    now, released = deps.clock(), 0
    bounds = {**stuck(now), **({"before": now - ORPHANED} if deps.sessions.shared else {})}
    with deps.sessions.reading() as session:
        left = rows.half_done(session, **bounds, limit=AT_ONCE)
    for one in left:
        with _free_turn(one.digest, deps.sessions) as is_free:
            if not is_free:
                continue
            with deps.sessions.transaction() as session:
                rows.release(one, session)
        log.warning("blob-left-held", digest=one.digest, since=one.since)
        released += 1
    return released


def stuck(now: datetime) -> dict[str, datetime]:
    """Bounds of when work was begun whose process has died: `before`, and `or_after`, when the clock was ahead."""
    return {"before": now - STUCK, "or_after": now + CLOCK_MARGIN}
