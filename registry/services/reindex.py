"""Reindex: make SQL again from the records and blobs of the object store.

Adds what is absent, and lets rows that are behind their records (`registry.services.behind`), as in a database that was
restored from a backup, say what those say; changes and removes nothing else.

The manifest is the truth (design.md, section 4): bundles with their envelopes and states, tags, profiles, and which
namespace holds which blobs all come back. Believed is what a trusted key signed, and nothing else of the bucket:

    the manifest       by the statement that pods verify too
    state, times, tag  by the record around them (`registry.services.records`)
    bytes              by their size here, by their digest at the next `fsck` and in every pod

So whoever can write to the bucket can make no bundle, bring none back, and move no tag. What is left out is named, with
the reason. What lives in SQL alone is lost: builds with their logs, bundles that were pushed and not proven yet,
receipts, what tuning has measured, and tokens, which an operator makes again. Workers register by themselves.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog
from sqlalchemy.orm import Session

from aot.errors import AotError, Conflict, MalformedDocument, Unavailable
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from aot.trust import TrustedKeys, verify
from registry.db import blobs as blob_rows
from registry.db import bundles as bundle_rows
from registry.db import fleet as fleet_rows
from registry.db import records as record_rows
from registry.db import tags as tag_rows
from registry.db.models import BlobRow
from registry.db.records import RECORDED_STATES
from registry.db.session import tried_again
from registry.deps import Deps
from registry.services import behind, blobs, bundles, damage, proof, records
from registry.services.proof import Received
from registry.services.records import BUNDLES, TAGS, BundleRecord, TagRecord

# Of one bundle or tag, which an older registry may be at in another order (`tried_again`).
MOST_TRIES = 5
log = structlog.get_logger()


@dataclass(frozen=True)
class Reindexed:
    """What was added or brought up to its record, and which records were not taken, with the reason.

    `unrecorded`: what has rows and, though it was written once, no record any more.
    """

    bundles: tuple[Digest, ...]
    tags: tuple[str, ...]
    damaged: tuple[Digest, ...]
    refused: Mapping[str, str]
    withdrawn: tuple[Digest, ...] = ()
    moved: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()


def reindex(deps: Deps, *, trusted: TrustedKeys, unsigned: bool = False) -> Reindexed:
    """One pass; sent again it adds nothing. `trusted`: keys that signed and whose files are not here any more.

    `unsigned` believes records of before they were signed, too. Raises StorageUnavailable; what was added stays, and
    the next pass goes on.
    """
    keys = trusted | records.own_keys(deps)
    while records.forget_due(deps, keys=keys):
        pass  # what was removed does not come back
    reading, known = _Reading(deps, keys, unsigned), set[str]()
    # Tags after all bundles: a tag stands for one of them.
    for prefix, read in ((BUNDLES, reading.bundle), (TAGS, reading.tag)):
        for name in deps.records.list(prefix):
            known.add(name)
            read(name)
    done = Reindexed(
        bundles=tuple(reading.bundles),
        tags=tuple(reading.tags),
        damaged=tuple(reading.damaged),
        refused=reading.refused,
        withdrawn=tuple(reading.withdrawn),
        moved=tuple(reading.moved),
        unrecorded=tuple(behind.unrecorded(deps, known=known)),
    )
    counts = {name: len(getattr(done, name)) for name in ("bundles", "tags", "damaged", "unrecorded")}
    log.info("reindexed", withdrawn=done.withdrawn, moved=done.moved, refused=done.refused, **counts)
    return done


@dataclass
class _Reading:
    deps: Deps
    keys: TrustedKeys
    unsigned: bool
    bundles: list[Digest] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    damaged: list[Digest] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    withdrawn: list[Digest] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    def bundle(self, name: str) -> None:
        try:
            record, received = self._read_bundle(name)
        except Unavailable:
            raise
        except AotError as error:
            self.refused[name] = _why(error)
            return
        add = partial(_add_bundle, record, received, self.deps, rewrite=self.unsigned)
        try:
            complete = tried_again(add, tries=MOST_TRIES)
        except Conflict:
            complete = None  # it was published, pushed or brought back since it was looked for
        if complete is None:
            if record.state is BundleState.WITHDRAWN:
                tried_again(partial(self._withdraw, record, received.digest), tries=MOST_TRIES)
            return
        self.bundles.append(received.digest)
        if not complete:
            self.damaged.append(received.digest)

    def _withdraw(self, record: BundleRecord, digest: Digest) -> None:
        recorded_at = None if self.unsigned else self.deps.clock()
        with self.deps.sessions.transaction() as session:
            withdrawn = behind.withdraw(digest, record, recorded_at=recorded_at, session=session)
        if withdrawn:
            self.withdrawn.append(digest)

    def tag(self, name: str) -> None:
        content = self.deps.records.find(name)
        if content is None:
            return  # it was listed, and its tag is removed since
        try:
            tag = records.read_tag(content, keys=self.keys, unsigned=self.unsigned)
        except Unavailable:
            raise
        except AotError as error:
            self.refused[name] = _why(error)
            return
        reason, moved = tried_again(partial(self._put_tag, name, tag), tries=MOST_TRIES)
        if reason is None:
            self.tags.append(f"{tag.namespace}/{tag.name}:{tag.tag}")
        elif moved:
            self.moved.append(f"{tag.namespace}/{tag.name}:{tag.tag}")
        elif reason:
            self.refused[name] = reason

    def _put_tag(self, name: str, tag: TagRecord) -> tuple[str | None, bool]:
        with self.deps.sessions.transaction() as session:
            gone = partial(self._is_gone, name)
            reason = _add_tag(tag, session, gone=gone, rewrite=self.unsigned)
            moved = reason == "" and not self.unsigned and behind.move(tag, now=self.deps.clock(), session=session)
        return reason, moved

    def _read_bundle(self, name: str) -> tuple[BundleRecord, Received]:
        """Raises MalformedDocument and SignatureRejected, for a state that is none of a signed bundle too."""
        record = records.read_bundle(self._content(name), keys=self.keys, unsigned=self.unsigned)
        received = proof.read(record.manifest)
        manifest = received.manifest
        verify(
            record.envelope,
            self.keys,
            manifest=received.digest,
            namespace=manifest.namespace,
            name=manifest.name,
            build_key=manifest.build_key,
        )
        if record.state not in RECORDED_STATES:
            raise MalformedDocument(
                f"the record says that the bundle is {record.state}", hint="only live and withdrawn ones have records"
            )
        return record, received

    def _is_gone(self, name: str) -> bool:
        return self.deps.records.find(name) is None

    def _content(self, name: str) -> bytes:
        return self.deps.records.find(name) or b""


def _why(error: AotError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _add_bundle(record: BundleRecord, received: Received, deps: Deps, *, rewrite: bool) -> bool | None:
    """None where it is there already; else whether all of its bytes are. `rewrite`: its record is to be signed."""
    with deps.sessions.reading() as session:
        if bundle_rows.find_bundle(received.digest, session) is not None:
            return None
    manifest = received.manifest
    arrived = blobs.observe((*manifest.blobs, *manifest.spec.blobs), deps.store, sessions=deps.sessions)
    with deps.sessions.transaction() as session:
        now = record.created_at
        blob_rows.ensure_namespace(manifest.namespace, now=now, session=session)
        fleet_rows.insert_profile(manifest.profile, now=now, session=session)
        # What was condemned lives again; what is being deleted is not there any more.
        sources = [blob for blob in manifest.spec.blobs if arrived.sizes.get(blob.digest) == blob.size_bytes]
        wanted = blobs.distinct((*manifest.blobs, *sources))
        # Rows that nobody sees yet, before those that others may hold, as whoever opens an upload: who waits for one of
        # the first holds none of these, which somebody may want who is waited for himself.
        known = blob_rows.seen((blob.digest for blob in wanted), session)
        fresh = _Fresh(arrived, {blob.digest for blob in wanted} - set(known), at=deps.clock())
        blob_rows.make_known((blob for blob in wanted if blob.digest in fresh.digests), now=fresh.at, session=session)
        going = set(blob_rows.hold_blobs((blob.digest for blob in wanted), session=session))
        lacking = {
            blob.digest
            for blob in sorted(wanted, key=lambda blob: blob.digest)
            if blob.digest in going or not _add_blob(blob, manifest.namespace, fresh=fresh, session=session)
        }
        missing = [blob.digest for blob in manifest.blobs if blob.digest in lacking]
        row = bundles.insert(received, state=record.state, envelope=record.envelope, now=now, session=session)
        row.published_at, row.withdrawn_at = record.published_at, record.withdrawn_at
        row.withdrawn_reason, row.replacement = record.withdrawn_reason, record.replacement
        # Its last use is not known: it counts from here, lest everything expire at once.
        row.used_at = deps.clock()
        row.recorded_at = row.sealed_at = None if rewrite else row.used_at
        row.damage = damage.of_missing(missing)
    return not missing


@dataclass(frozen=True)
class _Fresh:
    """What the store told, and which blobs had no row when theirs was made `at` that time."""

    arrived: blobs.Arrived
    digests: Set[Digest]
    at: datetime


def _add_blob(blob: Blob, namespace: Namespace, *, fresh: _Fresh, session: Session) -> bool:
    """False where the store does not hold it. The row is there, and held."""
    now, arrived = fresh.at, fresh.arrived
    stored = arrived.sizes.get(blob.digest) == blob.size_bytes
    seen = arrived.seen.get(blob.digest)
    blob_rows.open_uploads((blob,), namespace=namespace, now=now, session=session)
    blob_rows.touch_views((blob.digest,), namespace=namespace, now=now, session=session)
    if stored:
        row = session.get(BlobRow, blob.digest, populate_existing=True)
        if row is not None and row.state is BlobState.PENDING:
            # What had no row, and has none but ours, is nobody's to remove. Else it may be gone: `damage.heal` looks.
            is_ours = seen is None and blob.digest in fresh.digests and row.created_at == now
            if not is_ours and not blob_rows.is_as_seen(row, seen):
                return False
            blob_rows.mark_stored((blob,), now=now, session=session)
        blob_rows.mark_uploaded((blob.digest,), namespace=namespace, now=now, session=session)
    return stored


def _add_tag(tag: TagRecord, session: Session, *, gone: Callable[[], bool], rewrite: bool) -> str | None:
    """None where it was added, an empty string where it is there already or was removed meanwhile, else why not.

    `gone`: whether its record is not there any more.
    """
    bundle = bundle_rows.find_bundle(tag.bundle, session)
    if bundle is None or bundle.state not in (BundleState.LIVE, BundleState.WITHDRAWN):
        return f"there is no bundle {tag.bundle}"
    if (bundle.namespace, bundle.name, bundle.profile) != (tag.namespace, tag.name, tag.profile):
        return f"{tag.bundle} is no bundle of {tag.namespace}/{tag.name} for {tag.profile}"
    place = (tag.namespace, tag.name, tag.tag, tag.profile)
    if not tag_rows.insert_tag(place, tag.bundle, now=tag.moved_at, session=session):
        return ""
    row = tag_rows.find_tag(place, session)
    assert row is not None, "it has just been inserted"
    # Whoever removes a tag notes that with its row, removes the record, and ends the note: one of the two is seen.
    if record_rows.is_forgotten(row, session=session) or gone():
        session.delete(row)
        return ""
    if not rewrite:
        row.recorded_at = row.sealed_at = tag.moved_at
    return None
