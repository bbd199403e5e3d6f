"""Deletes of blobs: the row says so first, and what goes is what lay there while it said so.

    marked    `deleting`, committed: nobody counts on the bytes any more (`BlobPending`), nor on what is put meanwhile
    looked at which version lies there
    deleted   that version alone, while no other process deletes the same blob, and the row still says what it said

Whoever was stopped between two of these steps, for however long, finds the row changed. Where it was stopped between
the look at the row and the delete and has lost its connection too, the version is another by then: the blob stays.

The turn of a blob is as in `registry.services.holding`; of several processes at one SQLite file each relies on the
version.
"""

from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.db import blobs as rows
from registry.deps import Deps
from registry.services.holding import turn

log = structlog.get_logger()


def delete_marked(digest: Digest, *, since: datetime, end: Callable[[Session], bool], deps: Deps) -> bool:
    """Delete the bytes of a blob that was marked as deleting at `since`, then `end`, a compare-and-set on the mark.

    Returns what `end` returns; False where somebody else has taken the blob over, or its bytes are others by now: then
    the mark is left, for a later pass. Raises StorageUnavailable.
    """
    version = deps.store.version(digest)
    with turn(digest, deps.sessions):
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
