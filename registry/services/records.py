"""Records: the account of bundles and tags that lies beside the bytes, so that `reindex` can make SQL again.

Rows are written first, their record after the commit; `recorded_at` is None in between, so whatever a crash or a store
that is away leaves out is written by the sweeper. A record holds what cannot be read from the manifest: envelope, state
and times. Pushed bundles have none before they are proven.
"""

from datetime import datetime

import structlog

from aot.errors import AotError
from aot.schema.codec import Document, always, encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.state import BundleState
from registry.db import records as rows
from registry.db.models import BundleRow, TagRow
from registry.deps import Deps

RECORD_FORMAT = 1
BUNDLES, TAGS = "bundles/", "tags/"
MOST_A_PASS = 200
log = structlog.get_logger()


class BundleRecord(Document, kw_only=True):
    format: int = always(RECORD_FORMAT)
    manifest: str
    envelope: Envelope
    state: BundleState
    created_at: datetime
    published_at: datetime | None
    withdrawn_at: datetime | None = None
    withdrawn_reason: str = ""
    replacement: Digest | None = None


class TagRecord(Document, kw_only=True):
    format: int = always(RECORD_FORMAT)
    namespace: Namespace
    name: Name
    tag: Tag
    profile: Name
    bundle: Digest
    moved_at: datetime


def write_due(deps: Deps, *, bundle: Digest | None = None) -> int:
    """Write what is not recorded yet, of `bundle` alone where one is given; return how many records that were.

    Raises StorageUnavailable and InvalidConfig; what is left is due at the next call.
    """
    with deps.sessions.reading() as session:
        bundles = rows.unrecorded_bundles(session, bundle=bundle, limit=MOST_A_PASS)
        tags = rows.unrecorded_tags(session, bundle=bundle, limit=MOST_A_PASS)
    for row in bundles:
        deps.records.put(bundle_name(row.digest), encode(_bundle_record(row)))
        with deps.sessions.transaction() as session:
            rows.mark_bundle_recorded(row, now=deps.clock(), session=session)
    for tag in tags:
        deps.records.put(tag_name(tag), encode(_tag_record(tag)))
        with deps.sessions.transaction() as session:
            rows.mark_tag_recorded(tag, now=deps.clock(), session=session)
    return len(bundles) + len(tags)


def write_soon(deps: Deps, bundle: Digest) -> None:
    """Write what is due of `bundle`; where that fails the sweeper does it."""
    try:
        write_due(deps, bundle=bundle)
    except AotError as error:
        log.warning("record-not-written", bundle=bundle, code=error.code, reason=error.message)


def forget(bundle: Digest, deps: Deps) -> None:
    """Remove the record of a bundle whose rows are gone. Raises StorageUnavailable."""
    deps.records.delete(bundle_name(bundle))


def bundle_name(digest: Digest) -> str:
    return f"{BUNDLES}{digest.hex[:2]}/{digest.hex[2:]}.json"


def tag_name(row: TagRow) -> str:
    return f"{TAGS}{row.namespace}/{row.name}/{row.tag}/{row.profile}.json"


def _bundle_record(row: BundleRow) -> BundleRecord:
    assert row.envelope is not None, "only signed bundles are recorded"
    return BundleRecord(
        manifest=row.manifest.decode(),
        envelope=row.envelope,
        state=row.state,
        created_at=row.created_at,
        published_at=row.published_at,
        withdrawn_at=row.withdrawn_at,
        withdrawn_reason=row.withdrawn_reason,
        replacement=row.replacement,
    )


def _tag_record(row: TagRow) -> TagRecord:
    return TagRecord(
        namespace=row.namespace,
        name=row.name,
        tag=row.tag,
        profile=row.profile,
        bundle=row.bundle,
        moved_at=row.moved_at,
    )
