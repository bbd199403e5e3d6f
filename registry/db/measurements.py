"""SQL over what tuning has measured."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from registry.db.models import BlobRow, BundleRow, MeasurementRow


def add_measurements(row: MeasurementRow, session: Session) -> None:
    session.add(row)
    session.flush()


def newest_measurements(namespace: Namespace, key: Digest, session: Session) -> Blob | None:
    """Those of the live bundle that was published last, of the ones whose bytes are there."""
    found = session.execute(
        select(MeasurementRow.blob, MeasurementRow.size_bytes)
        .join(BundleRow, BundleRow.digest == MeasurementRow.bundle)
        .join(BlobRow, BlobRow.digest == MeasurementRow.blob)
        .where(MeasurementRow.namespace == namespace, MeasurementRow.key == key)
        .where(BundleRow.state == BundleState.LIVE, BlobRow.state == BlobState.STORED)
        .order_by(BundleRow.published_at.desc(), BundleRow.digest)
        .limit(1)
    ).first()
    return found and Blob(digest=found.blob, size_bytes=found.size_bytes)


def measured_blobs(blobs: Iterable[Digest], session: Session) -> set[Digest]:
    """Those of `blobs` that hold measurements of a bundle."""
    return set(session.scalars(select(MeasurementRow.blob).where(MeasurementRow.blob.in_(list(blobs)))))
