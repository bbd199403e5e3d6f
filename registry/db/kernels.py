"""SQL over kernels.

Without a name they are listed by bundle, the newest first, and in it in the order of the manifest. With the beginning
of a name they are listed by name, then bundle and position, which is the order of the index `ix_kernels_head`: a page
costs what it holds, however many kernels there are and however many of them match.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, literal, or_, select, text, tuple_
from sqlalchemy.orm import Session, defer

from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from registry.db.models import BundleRow, KernelRow
from registry.db.types import HEAD_CHARACTERS, Head, Plain, Unindexed, Word, after_prefix

Found = Sequence[Row[tuple[KernelRow, BundleRow]]]


@dataclass(frozen=True)
class Position:
    """Where a page ended: the kernel's bundle, and its place in it."""

    bundle: Digest
    position: int


@dataclass(frozen=True)
class Searched:
    """What is asked of kernels. `where` compares columns by name, None nothing: `bundle` and `blob` of the kernel,
    `namespace`, `name` and `state` of its bundle. `capabilities` None: any.
    """

    where: dict[str, Any]
    capabilities: Sequence[Capability] | None
    namespaces: Sequence[Namespace]
    limit: int


def list_newest(searched: Searched, session: Session, *, after: tuple[datetime, Position] | None) -> Found:
    # The newest bundles first, and their kernels: the page is full soon.
    few = searched.where.get("bundle") or searched.where.get("blob")
    statement = _statement(searched, digest=BundleRow.digest if few else Unindexed(BundleRow.digest)).order_by(
        BundleRow.created_at.desc(), BundleRow.digest.desc(), KernelRow.position
    )
    if after is not None:
        at, last = after
        older = or_(BundleRow.created_at < at, and_(BundleRow.created_at == at, BundleRow.digest < last.bundle))
        later = and_(BundleRow.created_at == at, BundleRow.digest == last.bundle, KernelRow.position > last.position)
        statement = statement.where(or_(older, later))
    return session.execute(statement).all()


def list_named(prefix: str, searched: Searched, session: Session, *, after: tuple[str, Position] | None) -> Found:
    """Kernels whose names begin with `prefix`, which is not empty. `after`: how the last name began, and its place."""
    head = Head(KernelRow.name)
    begin = prefix[:HEAD_CHARACTERS]
    # Of `after` too: not every planner begins in the middle of equal names, and each begins at a name.
    least = begin if after is None else after[0]
    statement = _statement(searched).where(head >= literal(least, Plain))
    if (end := after_prefix(begin)) is not None:
        statement = statement.where(head < literal(end, Plain))
    if len(prefix) > HEAD_CHARACTERS:
        statement = statement.where(KernelRow.name.startswith(prefix, autoescape=True))
    order = (head, KernelRow.bundle, KernelRow.position)
    if after is not None:
        name, last = after
        values = (literal(name, Plain), literal(last.bundle, Word(Digest)), literal(last.position))
        statement = statement.where(tuple_(*order) > tuple_(*values))
    return session.execute(statement.order_by(*order)).all()


def capabilities_held(session: Session) -> Sequence[Capability]:
    """Every capability that a kernel is compiled for: one step in the index for each, and not one for each kernel."""
    found = session.execute(_CAPABILITIES)
    return [Capability(row[0]) for row in found]


_CAPABILITIES = text(
    """
    WITH RECURSIVE held(capability) AS (
        SELECT min(capability) FROM kernels
        UNION ALL
        SELECT (SELECT min(capability) FROM kernels WHERE capability > held.capability)
        FROM held WHERE held.capability IS NOT NULL
    )
    SELECT capability FROM held WHERE capability IS NOT NULL
    """
)


def _statement(
    searched: Searched, *, digest: ColumnElement[Any] | Any = BundleRow.digest
) -> Select[tuple[KernelRow, BundleRow]]:
    statement = (
        select(KernelRow, BundleRow)
        .join(BundleRow, digest == KernelRow.bundle)
        # A row for each kernel: its bundle's documents, up to megabytes each, are not part of the listing.
        .options(defer(BundleRow.manifest), defer(BundleRow.envelope))
        .limit(searched.limit)
    )
    for column, value in searched.where.items():
        if value is not None:
            of = KernelRow if column in ("bundle", "blob") else BundleRow
            statement = statement.where(getattr(of, column) == value)
    if searched.capabilities is not None:
        # Most kernels are for a few capabilities: what is sorted by is what is looked up.
        statement = statement.where(Unindexed(KernelRow.capability).in_(list(map(str, searched.capabilities))))
    if searched.namespaces:
        statement = statement.where(BundleRow.namespace.in_(searched.namespaces))
    return statement
