"""SQL over kernels. They are listed by bundle, the newest first, and in it in the order of the manifest."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, or_, select
from sqlalchemy.orm import Session, defer

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from registry.db.models import BundleRow, KernelRow

Position = tuple[datetime, Digest, int]
"""Where a page ended: when the bundle was made, its digest, the kernel's position in it."""


def search_kernels(
    session: Session,
    *,
    where: dict[str, Any],
    text: str | None,
    namespaces: Sequence[Namespace],
    after: Position | None,
    limit: int,
) -> Sequence[Row[tuple[KernelRow, BundleRow]]]:
    """`where` compares columns by name, None nothing: `capability`, `bundle` and `blob` of the kernel, `namespace`,
    `name` and `state` of its bundle.
    """
    statement = (
        select(KernelRow, BundleRow)
        .join(BundleRow, BundleRow.digest == KernelRow.bundle)
        # A row for each kernel: its bundle's documents, up to megabytes each, are not part of the listing.
        .options(defer(BundleRow.manifest), defer(BundleRow.envelope))
        .order_by(BundleRow.created_at.desc(), BundleRow.digest.desc(), KernelRow.position)
        .limit(limit)
    )
    for column, value in where.items():
        if value is not None:
            of = KernelRow if column in ("capability", "bundle", "blob") else BundleRow
            statement = statement.where(getattr(of, column) == value)
    if text is not None:
        statement = statement.where(KernelRow.name.contains(text, autoescape=True))
    if namespaces:
        statement = statement.where(BundleRow.namespace.in_(namespaces))
    if after is not None:
        at, digest, position = after
        older = or_(BundleRow.created_at < at, and_(BundleRow.created_at == at, BundleRow.digest < digest))
        later = and_(BundleRow.created_at == at, BundleRow.digest == digest, KernelRow.position > position)
        statement = statement.where(or_(older, later))
    return session.execute(statement).all()
