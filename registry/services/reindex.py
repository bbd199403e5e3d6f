"""Reindex: make SQL again from the records and blobs of the object store. Adds what is absent, changes nothing else.

The manifest is the truth (design.md, section 4): bundles with their envelopes and states, tags, profiles, and which
namespace holds which blobs all come back. A record counts only with a signature of a trusted key, so that whoever can
write to the bucket cannot make a bundle. What lives in SQL alone is lost: builds with their logs, bundles that were
pushed and not proven yet, receipts, and tokens, which an operator makes again. Workers register by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy.orm import Session

from aot.errors import AotError
from aot.schema.codec import decode
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from aot.trust import TrustedKeys, verify
from registry.db import blobs as blob_rows
from registry.db import bundles as bundle_rows
from registry.db import fleet as fleet_rows
from registry.db import tags as tag_rows
from registry.db.models import BlobRow
from registry.deps import Deps
from registry.services import blobs, bundles, damage, proof
from registry.services.proof import Received
from registry.services.records import BUNDLES, TAGS, BundleRecord, TagRecord

log = structlog.get_logger()


@dataclass(frozen=True)
class Reindexed:
    """What was added, and which records were not taken, with the reason."""

    bundles: tuple[Digest, ...]
    tags: tuple[str, ...]
    damaged: tuple[Digest, ...]
    refused: Mapping[str, str]


def reindex(deps: Deps, *, trusted: TrustedKeys) -> Reindexed:
    """One pass; sent again it adds nothing. `trusted`: keys that signed and whose files are not here any more.

    Raises StorageUnavailable; what was added stays, and the next pass goes on.
    """
    keys = trusted | TrustedKeys.of(str(key.public) for key in deps.signing_keys)
    added: list[Digest] = []
    damaged: list[Digest] = []
    refused: dict[str, str] = {}
    for name in deps.records.list(BUNDLES):
        try:
            record, received = _read_bundle(name, deps, keys=keys)
        except AotError as error:
            refused[name] = error.message
            continue
        complete = _add_bundle(record, received, deps)
        if complete is not None:
            added.append(received.digest)
        if complete is False:
            damaged.append(received.digest)
    tags = []
    for name in deps.records.list(TAGS):
        try:
            tag = decode(deps.records.find(name) or b"", TagRecord, what="record of a tag")
        except AotError as error:
            refused[name] = error.message
            continue
        with deps.sessions.transaction() as session:
            if reason := _add_tag(tag, session):
                refused[name] = reason
            elif reason is None:
                tags.append(f"{tag.namespace}/{tag.name}:{tag.tag}")
    log.info("reindexed", bundles=len(added), tags=len(tags), damaged=len(damaged), refused=refused)
    return Reindexed(tuple(added), tuple(tags), tuple(damaged), refused)


def _read_bundle(name: str, deps: Deps, *, keys: TrustedKeys) -> tuple[BundleRecord, Received]:
    """Raises MalformedDocument and SignatureRejected."""
    record = decode(deps.records.find(name) or b"", BundleRecord, what="record of a bundle")
    received = proof.read(record.manifest)
    manifest = received.manifest
    verify(
        record.envelope,
        keys,
        manifest=received.digest,
        namespace=manifest.namespace,
        name=manifest.name,
        build_key=manifest.build_key,
    )
    return record, received


def _add_bundle(record: BundleRecord, received: Received, deps: Deps) -> bool | None:
    """None where it is there already; else whether all of its bytes are."""
    with deps.sessions.reading() as session:
        if bundle_rows.find_bundle(received.digest, session) is not None:
            return None
    manifest = received.manifest
    arrived = blobs.observe((*manifest.blobs, *manifest.spec.blobs), deps.store)
    with deps.sessions.transaction() as session:
        now = record.created_at
        blob_rows.ensure_namespace(manifest.namespace, now=now, session=session)
        fleet_rows.insert_profile(manifest.profile, now=now, session=session)
        sources = [blob for blob in manifest.spec.blobs if arrived.sizes.get(blob.digest) == blob.size_bytes]
        missing = [
            blob.digest
            for blob in blobs.distinct((*manifest.blobs, *sources))
            if not _add_blob(blob, received, arrived=arrived, deps=deps, session=session)
        ]
        row = bundles.insert(received, state=record.state, envelope=record.envelope, now=now, session=session)
        row.published_at, row.withdrawn_at = record.published_at, record.withdrawn_at
        row.withdrawn_reason, row.replacement = record.withdrawn_reason, record.replacement
        # Its last use is not known: it counts from here, lest everything expire at once.
        row.used_at = row.recorded_at = deps.clock()
        row.damage = damage.of_missing(missing)
    return not missing


def _add_blob(blob: Blob, received: Received, *, arrived: blobs.Arrived, deps: Deps, session: Session) -> bool:
    """False where the store does not hold it."""
    now = deps.clock()
    stored = arrived.sizes.get(blob.digest) == blob.size_bytes
    blob_rows.open_upload(blob, namespace=received.manifest.namespace, now=now, session=session)
    if stored:
        row = session.get(BlobRow, blob.digest, populate_existing=True)
        if row is not None and row.state is BlobState.PENDING:
            blob_rows.mark_stored(blob, now=now, session=session)
        blob_rows.mark_uploaded(blob.digest, namespace=received.manifest.namespace, now=now, session=session)
    return stored


def _add_tag(tag: TagRecord, session: Session) -> str | None:
    """None where it was added, an empty string where it is there already, else why not."""
    bundle = bundle_rows.find_bundle(tag.bundle, session)
    if bundle is None or bundle.state not in (BundleState.LIVE, BundleState.WITHDRAWN):
        return f"there is no bundle {tag.bundle}"
    if (bundle.namespace, bundle.name, bundle.profile) != (tag.namespace, tag.name, tag.profile):
        return f"{tag.bundle} is no bundle of {tag.namespace}/{tag.name} for {tag.profile}"
    place = (tag.namespace, tag.name, tag.tag, tag.profile)
    if not tag_rows.insert_tag(place, tag.bundle, now=tag.moved_at, session=session):
        return ""
    row = tag_rows.find_tag(place, session)
    if row is not None:
        row.recorded_at = tag.moved_at
    return None
