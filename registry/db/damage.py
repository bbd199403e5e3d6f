"""SQL over blobs whose bytes are not what they should be, and the bundles that need them."""

from collections.abc import Sequence

from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from registry.db.models import ArtifactBlobRow, BlobRow, BundleRow, NamespaceBlobRow

_QUIETLY = {"synchronize_session": False}


def stored_blobs(session: Session, *, after: Digest | None, limit: int) -> Sequence[Blob]:
    """A page of the blobs that count as stored, by digest."""
    query = select(BlobRow.digest, BlobRow.size_bytes).where(BlobRow.state == BlobState.STORED)
    if after is not None:
        query = query.where(BlobRow.digest > after)
    rows = session.execute(query.order_by(BlobRow.digest).limit(limit))
    return [Blob(digest=digest, size_bytes=size) for digest, size in rows]


def unstore(digest: Digest, *, session: Session) -> bool:
    """Compare-and-set from stored to pending, for every namespace. False where it is not stored any more."""
    done = session.execute(
        update(BlobRow)
        .where(BlobRow.digest == digest, BlobRow.state == BlobState.STORED)
        .values(state=BlobState.PENDING, stored_at=None),
        execution_options=_QUIETLY,
    )
    if done.rowcount == 0:
        return False
    session.execute(
        update(NamespaceBlobRow).where(NamespaceBlobRow.digest == digest).values(stored_at=None),
        execution_options=_QUIETLY,
    )
    return True


def damage_bundles(digest: Digest, *, reason: str, session: Session) -> tuple[Digest, ...]:
    named = exists().where(ArtifactBlobRow.bundle == BundleRow.digest, ArtifactBlobRow.digest == digest)
    bundles = tuple(session.scalars(select(BundleRow.digest).where(named).order_by(BundleRow.digest)))
    session.execute(
        update(BundleRow).where(BundleRow.digest.in_(bundles)).values(damage=reason), execution_options=_QUIETLY
    )
    return bundles


def signed_bundles(session: Session, *, after: Digest | None, limit: int) -> Sequence[BundleRow]:
    """A page of the bundles that are or were visible, by digest."""
    query = select(BundleRow).where(BundleRow.state.in_((BundleState.LIVE, BundleState.WITHDRAWN)))
    if after is not None:
        query = query.where(BundleRow.digest > after)
    return session.scalars(query.order_by(BundleRow.digest).limit(limit)).all()


def damaged_bundles(session: Session) -> tuple[Digest, ...]:
    return tuple(session.scalars(select(BundleRow.digest).where(BundleRow.damage.is_not(None))))


def lacking_blobs(session: Session) -> Sequence[Blob]:
    """What damaged bundles need and the store may hold again."""
    query = (
        select(BlobRow.digest, BlobRow.size_bytes)
        .join(ArtifactBlobRow, ArtifactBlobRow.digest == BlobRow.digest)
        .join(BundleRow, BundleRow.digest == ArtifactBlobRow.bundle)
        .where(BundleRow.damage.is_not(None), BlobRow.state == BlobState.PENDING)
        .distinct()
    )
    return [Blob(digest=digest, size_bytes=size) for digest, size in session.execute(query)]


def heal_bundles(session: Session) -> tuple[Digest, ...]:
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
    healed = tuple(session.scalars(select(BundleRow.digest).where(BundleRow.damage.is_not(None), ~lacks)))
    session.execute(
        update(BundleRow).where(BundleRow.digest.in_(healed)).values(damage=None), execution_options=_QUIETLY
    )
    return healed
