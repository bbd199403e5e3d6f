"""SQL over the guards of bundles."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from registry.db.models import BundleRow, GuardRow

AskedGuard = tuple[str, str | None]
"""A kind, and its value; None: whatever it is."""

FEW = 1000


def narrowed(statement: Select[Any], guards: Sequence[AskedGuard], session: Session) -> Select[Any]:
    """The statement over bundles, of which one artifact puts each of `guards`.

    What few bundles put is looked up first, so that a rare condition is found without a walk over all bundles; what
    many put is met soon on the walk from the newest one.
    """
    rare: set[Digest] | None = None
    for kind, value in guards:
        same = (GuardRow.kind == kind,) if value is None else (GuardRow.kind == kind, GuardRow.value == value)
        found = set(session.scalars(select(GuardRow.bundle).where(*same).distinct().limit(FEW + 1)))
        if len(found) > FEW:
            statement = statement.where(exists().where(GuardRow.bundle == BundleRow.digest, *same))
        else:
            rare = found if rare is None else rare & found
    return statement if rare is None else statement.where(BundleRow.digest.in_(sorted(rare)))


def indexed(bundle: Digest, session: Session) -> set[tuple[str, str]]:
    """Kind and value of every guard that is found with the bundle."""
    found = session.execute(select(GuardRow.kind, GuardRow.value).where(GuardRow.bundle == bundle))
    return {(kind, value) for kind, value in found}
