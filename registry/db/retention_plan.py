"""SQL of retention's dry run: the same conditions, without a lock and without a change."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.db import retention as rows
from registry.db.models import ArtifactBlobRow, BlobRow, BundleRow, MeasurementRow


def expired_bundles(session: Session, *, expired: ColumnElement[bool]) -> Sequence[Digest]:
    query = select(BundleRow.digest).where(expired).order_by(BundleRow.created_at, BundleRow.digest)
    return session.scalars(query).all()


def named_by_others(expired: ColumnElement[bool]) -> ColumnElement[bool]:
    """True of blobs that are named by a bundle which has not expired."""
    gone = select(BundleRow.digest).where(expired)
    return or_(
        exists().where(ArtifactBlobRow.digest == BlobRow.digest, ArtifactBlobRow.bundle.not_in(gone)),
        exists().where(MeasurementRow.blob == BlobRow.digest, MeasurementRow.bundle.not_in(gone)),
    )


def unneeded_blobs(
    session: Session, *, opened_before: datetime, needed: Collection[Digest], named: ColumnElement[bool]
) -> Sequence[BlobRow]:
    condition = rows.unneeded(opened_before=opened_before, named=named)
    query = select(BlobRow).where(condition, BlobRow.created_at < opened_before).order_by(BlobRow.digest)
    return [row for row in session.scalars(query) if row.digest not in needed]


def due_blobs(
    session: Session, *, before: datetime, stuck: Mapping[str, datetime], named: ColumnElement[bool]
) -> Sequence[BlobRow]:
    condition = rows.due(before=before, stuck=stuck, named=named)
    return session.scalars(select(BlobRow).where(condition).order_by(BlobRow.digest)).all()
