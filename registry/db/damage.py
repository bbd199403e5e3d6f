"""SQL over blobs whose bytes are not what they should be, and the bundles that need them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, exists, func, select, tuple_, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from registry.db.blobs import AT_ONCE
from registry.db.models import ArtifactBlobRow, BlobRow, BundleRow, NamespaceBlobRow, TagRow
from registry.db.retention import NAMED, outside
from registry.db.tags import Place

_QUIETLY = {"synchronize_session": False}
# What is condemned is there until it is being deleted.
_READABLE = (BlobState.STORED, BlobState.CONDEMNED)
STORED_BLOB = (BlobRow.digest, BlobRow.size_bytes, BlobRow.stored_at)


class StoredBlob(NamedTuple):
    """`stored_at` tells it from the same blob that was taken out and stored again."""

    digest: Digest
    size_bytes: int
    stored_at: datetime


def stored_blobs(session: Session, *, after: Digest | None, limit: int) -> Sequence[StoredBlob]:
    """A page of the blobs that count as stored, by digest."""
    query = select(*STORED_BLOB).where(BlobRow.state == BlobState.STORED)
    if after is not None:
        query = query.where(BlobRow.digest > after)
    return [StoredBlob(*row) for row in session.execute(query.order_by(BlobRow.digest).limit(limit))]


def find_stored(digest: Digest, *, namespace: Namespace, session: Session) -> StoredBlob | None:
    """The blob, where it counts as stored and the namespace has uploaded it."""
    held = exists().where(NamespaceBlobRow.digest == BlobRow.digest, NamespaceBlobRow.namespace == namespace)
    query = select(*STORED_BLOB).where(BlobRow.digest == digest, BlobRow.state == BlobState.STORED, held)
    row = session.execute(query).one_or_none()
    return None if row is None else StoredBlob(*row)


def damages_of(bundles: Iterable[Digest], session: Session) -> dict[Digest, str]:
    """Why the bytes of these bundles cannot be had; sound ones are absent."""
    query = select(BundleRow.digest, BundleRow.damage).where(BundleRow.damage.is_not(None))
    rows = session.execute(query.where(BundleRow.digest.in_(list(bundles))))
    return {digest: damage for digest, damage in rows if damage is not None}


def count_damaged(session: Session) -> int:
    """How many bundles have bytes that cannot be had: read from `ix_bundles_damaged`, in which are no others."""
    return session.scalar(select(func.count()).select_from(BundleRow).where(BundleRow.damage.is_not(None))) or 0


def lacking_of(bundles: Iterable[Digest], session: Session) -> dict[Digest, Digest]:
    """Of each of these bundles one blob that cannot be read; whole ones are absent."""
    query = (
        select(ArtifactBlobRow.bundle, func.min(ArtifactBlobRow.digest))
        .join(BlobRow, BlobRow.digest == ArtifactBlobRow.digest)
        .where(ArtifactBlobRow.bundle.in_(list(bundles)), BlobRow.state.not_in(_READABLE))
        .group_by(ArtifactBlobRow.bundle)
    )
    return {bundle: Digest(digest) for bundle, digest in session.execute(query)}


def readable(digests: Iterable[Digest], session: Session) -> set[Digest]:
    """Which of these blobs can be read."""
    wanted = list(dict.fromkeys(digests))
    found: set[Digest] = set()
    for start in range(0, len(wanted), AT_ONCE):
        some = (BlobRow.digest.in_(wanted[start : start + AT_ONCE]), BlobRow.state.in_(_READABLE))
        found.update(session.scalars(select(BlobRow.digest).where(*some)))
    return found


def begin_removal(blob: StoredBlob, *, now: datetime, session: Session) -> bool:
    """Compare-and-set from stored to deleting, for every namespace. False where it was not stored since."""
    digest = blob.digest
    done = session.execute(
        update(BlobRow)
        .where(BlobRow.digest == digest, BlobRow.state == BlobState.STORED, BlobRow.stored_at == blob.stored_at)
        .values(state=BlobState.DELETING, condemned_at=now, stored_at=None),
        execution_options=_QUIETLY,
    )
    if done.rowcount == 0:
        return False
    session.execute(
        update(NamespaceBlobRow).where(NamespaceBlobRow.digest == digest).values(stored_at=None),
        execution_options=_QUIETLY,
    )
    return True


def take_over_removal(digest: Digest, *, since: datetime, now: datetime, session: Session) -> bool:
    """Compare-and-set on when it was begun. False where somebody else was first."""
    done = session.execute(
        update(BlobRow).where(*_removed_since(digest, since)).values(condemned_at=now), execution_options=_QUIETLY
    )
    return bool(done.rowcount)


def end_removal(digest: Digest, session: Session, *, since: datetime) -> bool:
    """The wrong bytes are gone: from deleting to pending. False where somebody else has taken it over."""
    done = session.execute(
        update(BlobRow).where(*_removed_since(digest, since)).values(state=BlobState.PENDING),
        execution_options=_QUIETLY,
    )
    return bool(done.rowcount)


def half_removed(
    session: Session, *, before: datetime, or_after: datetime, limit: int
) -> Sequence[tuple[Digest, datetime]]:
    """Blobs that a bundle names and whose removal began then: whoever began it has died. With when it began."""
    begun = outside(BlobRow.condemned_at, before=before, or_after=or_after)
    query = select(BlobRow.digest, BlobRow.condemned_at).where(BlobRow.state == BlobState.DELETING, begun, NAMED)
    return [(digest, since) for digest, since in session.execute(query.order_by(BlobRow.digest).limit(limit))]


def damage_bundles(digest: Digest, *, reason: str, session: Session) -> tuple[Digest, ...]:
    named = exists().where(ArtifactBlobRow.bundle == BundleRow.digest, ArtifactBlobRow.digest == digest)
    # Locked in the order of `registry.db.bundles.hold_bundles`; nobody publishes another one with a blob that goes.
    held = select(BundleRow.digest).where(named).order_by(BundleRow.digest).with_for_update(key_share=True)
    bundles = tuple(session.scalars(held))
    session.execute(update(BundleRow).where(named).values(damage=reason), execution_options=_QUIETLY)
    return bundles


def signed_bundles(session: Session, *, after: Digest | None, limit: int) -> Sequence[BundleRow]:
    """A page of the bundles that are or were visible, by digest."""
    query = select(BundleRow).where(BundleRow.state.in_((BundleState.LIVE, BundleState.WITHDRAWN)))
    if after is not None:
        query = query.where(BundleRow.digest > after)
    return session.scalars(query.order_by(BundleRow.digest).limit(limit)).all()


def tags_after(session: Session, *, after: Place | None, limit: int) -> Sequence[TagRow]:
    """A page of the tags, by namespace, model, tag and profile."""
    place = (TagRow.namespace, TagRow.name, TagRow.tag, TagRow.profile)
    query = select(TagRow).order_by(*place).limit(limit)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(*after))
    return session.scalars(query).all()


def any_damaged(session: Session) -> bool:
    return session.scalar(select(BundleRow.digest).where(BundleRow.damage.is_not(None)).limit(1)) is not None


def lacking_blobs(session: Session, *, start: Digest, limit: int) -> Sequence[Blob]:
    """What damaged bundles need and the store may hold again: by digest from `start` on, then from the first one."""
    query = (
        select(BlobRow.digest, BlobRow.size_bytes)
        .join(ArtifactBlobRow, ArtifactBlobRow.digest == BlobRow.digest)
        .join(BundleRow, BundleRow.digest == ArtifactBlobRow.bundle)
        .where(BundleRow.damage.is_not(None), BlobRow.state == BlobState.PENDING)
        .distinct()
        .order_by(BlobRow.digest)
    )
    found = list(session.execute(query.where(BlobRow.digest >= start).limit(limit)))
    if len(found) < limit:
        found += session.execute(query.where(BlobRow.digest < start).limit(limit - len(found)))
    return [Blob(digest=digest, size_bytes=size) for digest, size in found]


def asked_for_again(session: Session, *, opened_since: datetime, start: Digest, limit: int) -> Sequence[Blob]:
    """What was taken out and somebody has opened for upload since then: by digest from `start` on, then from the first.

    Also what no bundle names, such as the source of one that is to be proven.
    """
    opened = exists().where(NamespaceBlobRow.digest == BlobRow.digest, NamespaceBlobRow.opened_at >= opened_since)
    query = (
        select(BlobRow.digest, BlobRow.size_bytes)
        .where(BlobRow.state == BlobState.PENDING, BlobRow.condemned_at.is_not(None), opened)
        .order_by(BlobRow.digest)
    )
    found = list(session.execute(query.where(BlobRow.digest >= start).limit(limit)))
    if len(found) < limit:
        found += session.execute(query.where(BlobRow.digest < start).limit(limit - len(found)))
    return [Blob(digest=digest, size_bytes=size) for digest, size in found]


def heal_bundles(session: Session, *, limit: int) -> tuple[Digest, ...]:
    """Compare-and-set: bundles whose every blob is stored are not damaged any more."""
    lacks = (
        exists()
        .where(
            ArtifactBlobRow.bundle == BundleRow.digest,
            ArtifactBlobRow.digest == BlobRow.digest,
            BlobRow.state != BlobState.STORED,
        )
        .correlate(BundleRow)
    )
    whole = select(BundleRow.digest).where(BundleRow.damage.is_not(None), ~lacks).order_by(BundleRow.digest)
    held = session.scalars(whole.limit(limit).with_for_update(key_share=True)).all()
    # Whoever took a blob out meanwhile had the bundle before: what he took out is seen by the second look alone.
    healed = tuple(session.scalars(whole.where(BundleRow.digest.in_(held))))
    session.execute(
        update(BundleRow).where(BundleRow.digest.in_(healed)).values(damage=None), execution_options=_QUIETLY
    )
    return healed


def _removed_since(digest: Digest, since: datetime) -> tuple[ColumnElement[bool], ...]:
    return BlobRow.digest == digest, BlobRow.state == BlobState.DELETING, BlobRow.condemned_at == since
