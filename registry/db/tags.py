"""SQL over tags."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import select, tuple_, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from registry.db.models import TagRow
from registry.db.session import add_if_absent, hold_turn

Place = tuple[Namespace, Name, Tag, Name]
"""Namespace, model, tag, profile: what stands for one bundle."""


def take_turn(namespace: Namespace, name: Name, session: Session) -> None:
    """Let nobody else put, move or remove tags of the model until the transaction ends; before any of them is held.

    A tag that stands for nothing cannot be held. Who holds others already, and then finds that it was put meanwhile,
    could wait for whoever removes it, and he for a bundle.
    """
    hold_turn(session.connection(), f"tags {namespace}/{name}")


def find_tag(place: Place, session: Session) -> TagRow | None:
    return session.get(TagRow, place, populate_existing=True)


def hold_tag(place: Place, session: Session) -> TagRow | None:
    """As it stands; nobody moves or removes it until the transaction ends."""
    return session.get(TagRow, place, populate_existing=True, with_for_update=True)


def hold_tags(reference: Reference, session: Session) -> Sequence[TagRow]:
    """The same of every profile, in their order."""
    model = (TagRow.namespace == reference.namespace, TagRow.name == reference.name)
    query = select(TagRow).where(*model, TagRow.tag == reference.tag).order_by(TagRow.profile)
    return session.scalars(query.with_for_update()).all()


def hold_several(places: Iterable[Place], session: Session) -> Sequence[Digest]:
    """The same of several places, as far as they stand for something; returns for what."""
    key = (TagRow.namespace, TagRow.name, TagRow.tag, TagRow.profile)
    query = select(TagRow.bundle).where(tuple_(*key).in_(list(places))).order_by(*key)
    return session.scalars(query.with_for_update()).all()


def insert_tag(place: Place, bundle: Digest, *, now: datetime, session: Session) -> bool:
    """False where the tag exists."""
    namespace, name, tag, profile = place
    row = TagRow(namespace=namespace, name=name, tag=tag, profile=profile, bundle=bundle, moved_at=now)
    return add_if_absent(row, session)


def move_tag(place: Place, bundle: Digest, *, expected: Digest | None, now: datetime, session: Session) -> bool:
    """Compare-and-set: from `expected`, or from anywhere when None. False when nothing was moved."""
    namespace, name, tag, profile = place
    statement = update(TagRow).where(
        TagRow.namespace == namespace, TagRow.name == name, TagRow.tag == tag, TagRow.profile == profile
    )
    if expected is not None:
        statement = statement.where(TagRow.bundle == expected)
    values = statement.values(bundle=bundle, moved_at=now, recorded_at=None)
    return session.execute(values, execution_options={"synchronize_session": False}).rowcount == 1


def tags_of(bundles: Iterable[Digest], session: Session) -> dict[Digest, tuple[Tag, ...]]:
    """The tags that stand for each bundle now, sorted."""
    wanted = list(bundles)
    found: dict[Digest, list[Tag]] = {}
    if wanted:
        rows: Sequence[tuple[Digest, Tag]] = session.execute(
            select(TagRow.bundle, TagRow.tag).where(TagRow.bundle.in_(wanted))
        ).all()
        for bundle, tag in rows:
            found.setdefault(bundle, []).append(tag)
    return {bundle: tuple(sorted(tags)) for bundle, tags in found.items()}
