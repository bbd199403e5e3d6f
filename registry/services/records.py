"""Records: the account of bundles and tags that lies beside the bytes, so that `reindex` can make SQL again.

Rows are written first, their record after the commit; `recorded_at` is None in between, so whatever a crash or a store
that is away leaves out is written by the sweeper, as is what a version wrote that did not sign (`sealed_at`). A record
holds what cannot be read from the manifest: envelope, state and times. Pushed bundles have none before they are proven.
A record whose bundle has expired or whose tag was removed goes after the commit, too, and what is left out is on a list
(`forget_due`).

Records are signed by the registry (DSSE, as a bundle's statement is, under types of their own): whoever can write to
the bucket can neither bring back what was withdrawn nor move a tag by his own word. He can still destroy records, and
put back an older one that was signed once: a bucket that keeps versions, or locks its objects, is the answer to that.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import structlog

from aot.errors import AotError, MalformedDocument, SignatureRejected
from aot.schema.codec import Document, always, decode, encode
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.state import BundleState
from aot.trust import TrustedKeys, seal, unseal
from registry.db import records as rows
from registry.db.models import BundleRow, ForgottenRecordRow, ForgottenTagRow, TagRow
from registry.deps import Deps
from registry.services.one_by_one import several_at_once

RECORD_FORMAT = 1
BUNDLES, TAGS = "bundles/", "tags/"
BUNDLE_KIND = "application/vnd.aot-registry.bundle-record+json"
TAG_KIND = "application/vnd.aot-registry.tag-record+json"
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


Record = TypeVar("Record", BundleRecord, TagRecord)


def write_due(deps: Deps, *, bundle: Digest | None = None) -> int:
    """Write what is not recorded yet, of `bundle` alone where one is given; return how many records that were.

    Raises StorageUnavailable and InvalidConfig; what is left is due at the next call.
    """
    with deps.sessions.reading() as session:
        bundles = rows.unrecorded_bundles(session, bundle=bundle, limit=MOST_A_PASS)
        tags = rows.unrecorded_tags(session, bundle=bundle, limit=MOST_A_PASS)
    several_at_once((*bundles, *tags), lambda row: _write(row, deps))
    return len(bundles) + len(tags)


def _write(row: BundleRow | TagRow, deps: Deps) -> None:
    if isinstance(row, BundleRow):
        deps.records.put(bundle_name(row.digest), _sealed(bundle_record(row), BUNDLE_KIND, deps))
        with deps.sessions.transaction() as session:
            rows.mark_bundle_recorded(row, now=deps.clock(), session=session)
    else:
        deps.records.put(tag_name(row), _sealed(tag_record(row), TAG_KIND, deps))
        with deps.sessions.transaction() as session:
            rows.mark_tag_recorded(row, now=deps.clock(), session=session)


def write_soon(deps: Deps, bundle: Digest) -> None:
    """Write what is due of `bundle`; where that fails the sweeper does it."""
    try:
        write_due(deps, bundle=bundle)
    except AotError as error:
        log.warning("record-not-written", bundle=bundle, code=error.code, reason=error.message)


def forget_due(deps: Deps, *, keys: TrustedKeys | None = None) -> int:
    """Remove the records of bundles and tags whose rows are gone; return how many are off the list.

    A call looks at MOST_A_PASS of each. A record that tells of something after it was noted stays: the list is a
    restored backup's, and the bundle or tag was there again when the backup had been taken. So each is read before it
    is deleted. Nothing cheaper tells: what a listing has is the store's time, not that of the clock which the note was
    made by. Without `keys` those count that the registry signs with now.
    Raises StorageUnavailable once the others had their turn; what is left is due at the next call.
    """
    with deps.sessions.reading() as session:
        bundles = rows.forgotten_bundles(session, limit=MOST_A_PASS)
        tags = rows.forgotten_tags(session, reference=None, limit=MOST_A_PASS)
    return _forget((*bundles, *tags), keys or own_keys(deps), deps)


def own_keys(deps: Deps) -> TrustedKeys:
    return TrustedKeys.of(str(key.public) for key in deps.signing_keys)


def forget_soon(deps: Deps, tag: Reference) -> None:
    """Remove the records of a tag that was removed; where that fails the sweeper does it."""
    try:
        with deps.sessions.reading() as session:
            due = rows.forgotten_tags(session, reference=tag, limit=MOST_A_PASS)
        _forget(due, own_keys(deps), deps)
    except AotError as error:
        log.warning("record-not-removed", tag=tag, code=error.code, reason=error.message)


def _forget(due: Sequence[ForgottenRecordRow | ForgottenTagRow], keys: TrustedKeys, deps: Deps) -> int:
    several_at_once(due, lambda row: _forget_one(row, keys, deps))
    return len(due)


def _forget_one(row: ForgottenRecordRow | ForgottenTagRow, keys: TrustedKeys, deps: Deps) -> None:
    # Set or published again meanwhile: the record that was removed may have been its new one. That comes first, as
    # whoever removes a tag or bundle holds it before he notes that: in the other order each could wait for the other.
    if isinstance(row, ForgottenRecordRow):
        if not _is_later(bundle_name(row.bundle), BundleRecord, rows.noted_at(row), deps, keys):
            deps.records.delete(bundle_name(row.bundle))
        with deps.sessions.transaction() as session:
            rows.forget_bundle_recorded(row.bundle, session=session)
            rows.end_forgetting(row.bundle, row.note, session=session)
    else:
        if not _is_later(tag_name(row), TagRecord, rows.noted_at(row), deps, keys):
            deps.records.delete(tag_name(row))
        with deps.sessions.transaction() as session:
            rows.forget_tag_recorded(row, session=session)
            rows.end_forgetting_tag(row, session=session)


def _is_later(
    name: str, kind: type[BundleRecord | TagRecord], noted_at: datetime | None, deps: Deps, keys: TrustedKeys
) -> bool:
    """Whether the record tells of something after `noted_at`. None: a version that noted no time removes any record."""
    content = deps.records.find(name) if noted_at is not None else None
    if content is None or noted_at is None:
        return False
    try:
        found = read_tag(content, keys=keys) if kind is TagRecord else read_bundle(content, keys=keys)
    except AotError:
        return False  # nobody's word keeps it
    return _told_at(found) > noted_at


def _told_at(record: BundleRecord | TagRecord) -> datetime:
    if isinstance(record, TagRecord):
        return record.moved_at
    return max(filter(None, (record.created_at, record.published_at, record.withdrawn_at)))


def read_bundle(content: bytes, *, keys: TrustedKeys, unsigned: bool = False) -> BundleRecord:
    """Return the record. `unsigned`: also one of before they were signed.

    Raises MalformedDocument and SignatureRejected.
    """
    return _opened(content, BundleRecord, BUNDLE_KIND, keys=keys, unsigned=unsigned)


def read_tag(content: bytes, *, keys: TrustedKeys, unsigned: bool = False) -> TagRecord:
    """The same of a tag."""
    return _opened(content, TagRecord, TAG_KIND, keys=keys, unsigned=unsigned)


def bundle_name(digest: Digest) -> str:
    return f"{BUNDLES}{digest.hex[:2]}/{digest.hex[2:]}.json"


def tag_name(row: TagRow | ForgottenTagRow) -> str:
    return f"{TAGS}{row.namespace}/{row.name}/{row.tag}/{row.profile}.json"


def _sealed(record: BundleRecord | TagRecord, kind: str, deps: Deps) -> bytes:
    return encode(seal(encode(record), kind, *deps.signing_keys))


def _opened(content: bytes, record: type[Record], kind: str, *, keys: TrustedKeys, unsigned: bool) -> Record:
    try:
        envelope = decode(content, Envelope, what="record")
    except MalformedDocument:
        bare = decode(content, record, what="record")
        if unsigned:
            return bare
        raise SignatureRejected(
            "the record is not signed: its state, or where its tag stands, could be anybody's word",
            hint="it was written before records were signed; where nobody else could write to the bucket: --unsigned",
        ) from None
    return decode(unseal(envelope, keys, kind=kind), record, what="record")


def bundle_record(row: BundleRow) -> BundleRecord:
    """What the record of this row says."""
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


def tag_record(row: TagRow) -> TagRecord:
    """The same of a tag."""
    return TagRecord(
        namespace=row.namespace,
        name=row.name,
        tag=row.tag,
        profile=row.profile,
        bundle=row.bundle,
        moved_at=row.moved_at,
    )
