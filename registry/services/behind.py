"""Rows that are behind their records: a database that was restored from a backup knows nothing of what came after it.

The records in the object store go on where the backup ends, and every one is a signed account of a row that there was:

    a bundle is live here and its record says withdrawn: nothing brings a withdrawn bundle back, so the record is later
    a tag's record was written as its row says, and now tells of a later move: the row is of before that move

A row whose record is not written yet is ahead of it, not behind, and is left alone. `reindex` makes such rows say what
their records say; `fsck` leaves the records as they are. What has no record any more was removed or has expired after
the backup, or its record was lost: that is told, and nothing is removed for it.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.state import BundleState
from registry.db import bundles as bundle_rows
from registry.db import records as rows
from registry.db import tags as tag_rows
from registry.db.damage import tags_after
from registry.db.models import BundleRow, TagRow
from registry.db.retention import mark_used
from registry.deps import Deps
from registry.services.records import BundleRecord, TagRecord, bundle_name, tag_name

AT_ONCE = 500


def is_bundle_behind(row: BundleRow, record: BundleRecord) -> bool:
    return row.state is BundleState.LIVE and record.state is BundleState.WITHDRAWN


def is_tag_behind(row: TagRow, record: TagRecord) -> bool:
    return row.recorded_at is not None and row.recorded_at == row.sealed_at and record.moved_at > row.moved_at


def withdraw(digest: Digest, record: BundleRecord, *, recorded_at: datetime | None, session: Session) -> bool:
    """Take a bundle out that its record says was withdrawn. False where it is not live.

    `recorded_at` None: its record is to be written anew.
    """
    row = bundle_rows.find_bundle(digest, session)
    if row is None or not is_bundle_behind(row, record):
        return False
    changes: dict[str, Any] = {"withdrawn_at": record.withdrawn_at, "withdrawn_reason": record.withdrawn_reason}
    changes |= {"replacement": record.replacement, "recorded_at": recorded_at, "sealed_at": recorded_at}
    return bundle_rows.advance_bundle(row, BundleState.WITHDRAWN, session=session, **changes)


def move(tag: TagRecord, *, now: datetime, session: Session) -> bool:
    """Let the tag stand where its record says that it stood last. False where it does, or was moved after that."""
    row = tag_rows.hold_tag((tag.namespace, tag.name, tag.tag, tag.profile), session)
    if row is None or not is_tag_behind(row, tag):
        return False
    if not bundle_rows.hold_bundle(tag.bundle, session):
        return False  # it has expired since it was looked at
    before = row.bundle
    mark_used((before,), now=now, session=session)
    row.bundle, row.moved_at, row.recorded_at, row.sealed_at = tag.bundle, tag.moved_at, now, now
    session.flush()
    return before != tag.bundle


def unrecorded(deps: Deps, *, known: set[str]) -> Iterator[str]:
    """The names of records that were written once, as their rows say, and are not there. `known`: names that are.

    Raises StorageUnavailable.
    """
    for name in (*_bundles(deps, known), *_tags(deps, known)):
        if deps.records.find(name) is None:  # it may have been written since `known` was read
            yield name


def _bundles(deps: Deps, known: set[str]) -> Iterator[str]:
    after: Digest | None = None
    while True:
        with deps.sessions.reading() as session:
            page = rows.recorded_bundles(session, after=after, limit=AT_ONCE)
        if not page:
            return
        yield from (name for name in map(bundle_name, page) if name not in known)
        after = page[-1]


def _tags(deps: Deps, known: set[str]) -> Iterator[str]:
    after: tag_rows.Place | None = None
    while True:
        with deps.sessions.reading() as session:
            page = tags_after(session, after=after, limit=AT_ONCE)
        if not page:
            return
        yield from (tag_name(row) for row in page if row.recorded_at is not None and tag_name(row) not in known)
        last = page[-1]
        after = (last.namespace, last.name, last.tag, last.profile)
