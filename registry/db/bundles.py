"""SQL over bundles and artifacts. What a pod asks at its start (resolve, links) is one Core query each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.recipe import Route
from aot.schema.spec import Blob
from aot.schema.state import BundleState
from registry.db.builds import Asked
from registry.db.models import ArtifactBlobRow, ArtifactRow, BundleRow, KernelRow, TagRow
from registry.db.session import add_if_absent


@dataclass(frozen=True)
class Resolved:
    """What a pod needs of a bundle, and what it must be told where there is nothing to give."""

    digest: Digest
    manifest: bytes
    envelope: Envelope | None
    state: BundleState
    withdrawn_reason: str
    replacement: Digest | None
    damage: str | None
    tags: tuple[Tag, ...]


@dataclass(frozen=True)
class Listed:
    """The state of a bundle, and the blobs that it names."""

    namespace: Namespace
    state: BundleState
    withdrawn_reason: str
    replacement: Digest | None
    damage: str | None
    blobs: tuple[Blob, ...]


def find_bundle(digest: Digest, session: Session) -> BundleRow | None:
    return session.get(BundleRow, digest)


def hold_bundle(digest: Digest, session: Session) -> bool:
    """Keep retention off the bundle until the transaction ends. False where it is gone."""
    held = select(BundleRow.digest).where(BundleRow.digest == digest).with_for_update(key_share=True, read=True)
    return session.scalar(held) is not None


def insert_bundle(
    row: BundleRow,
    *,
    artifacts: Sequence[ArtifactRow],
    files: Sequence[ArtifactBlobRow],
    kernels: Sequence[KernelRow],
    session: Session,
) -> bool:
    """False where the bundle exists already."""
    if not add_if_absent(row, session):
        return False
    session.add_all(artifacts)
    session.flush()
    session.add_all(files)
    session.add_all(kernels)
    session.flush()
    return True


def advance_bundle(row: BundleRow, to: BundleState, *, session: Session, **changes: Any) -> bool:
    """Compare-and-set from the state that was read; False when the bundle is not in it any more."""
    statement = update(BundleRow).where(BundleRow.digest == row.digest, BundleRow.state == row.state)
    done = session.execute(statement.values(state=to, **changes), execution_options={"synchronize_session": False})
    session.refresh(row)
    return done.rowcount == 1


def newest_live(asked: Sequence[Asked], session: Session) -> dict[Asked, Digest]:
    """The live bundle that was published last for each, where there is one."""
    if not asked:
        return {}
    rows = session.execute(
        select(BundleRow.namespace, BundleRow.name, BundleRow.build_key, BundleRow.digest)
        .where(
            tuple_(BundleRow.namespace, BundleRow.name, BundleRow.build_key).in_(list(asked)),
            BundleRow.state == BundleState.LIVE,
            BundleRow.damage.is_(None),
        )
        .order_by(BundleRow.published_at, BundleRow.digest)
    )
    return {(namespace, name, key): digest for namespace, name, key, digest in rows}


def resolve_tag(namespace: Namespace, name: Name, tag: Tag, *, session: Session) -> tuple[Resolved, ...]:
    """Every bundle that the tag stands for, whatever its state, by profile."""
    statement = (
        _resolving()
        .join(TagRow, TagRow.bundle == BundleRow.digest)
        .where(TagRow.namespace == namespace, TagRow.name == name, TagRow.tag == tag)
        .order_by(TagRow.profile)
    )
    return _resolved(statement, session)


def resolve_digests(digests: Iterable[Digest], session: Session) -> tuple[Resolved, ...]:
    wanted = list(digests)
    return _resolved(_resolving().where(BundleRow.digest.in_(wanted)), session) if wanted else ()


def resolve_pinned(
    namespace: Namespace, name: Name, digests: Sequence[Digest], *, session: Session
) -> tuple[Resolved, ...]:
    """Those of `digests` that are bundles of this model, whatever their state, in the order given."""
    statement = _resolving().where(
        BundleRow.digest.in_(list(digests)), BundleRow.namespace == namespace, BundleRow.name == name
    )
    return tuple(sorted(_resolved(statement, session), key=lambda found: digests.index(found.digest)))


def blobs_of(digest: Digest, session: Session) -> Listed | None:
    rows = session.execute(
        select(
            BundleRow.namespace,
            BundleRow.state,
            BundleRow.withdrawn_reason,
            BundleRow.replacement,
            BundleRow.damage,
            ArtifactBlobRow.digest,
            ArtifactBlobRow.size_bytes,
        )
        .join(ArtifactBlobRow, ArtifactBlobRow.bundle == BundleRow.digest, isouter=True)
        .where(BundleRow.digest == digest)
        .order_by(ArtifactBlobRow.position)
    ).all()
    if not rows:
        return None
    sizes = {row[5]: row[6] for row in rows if row[5] is not None}
    blobs = tuple(Blob(digest=blob, size_bytes=size) for blob, size in sizes.items())
    return Listed(*rows[0][:5], blobs=blobs)


def search_bundles(
    session: Session,
    *,
    where: dict[str, Any],
    text: str | None,
    tag: Tag | None,
    route: Route | None,
    namespaces: Sequence[Namespace],
    after: tuple[datetime, Digest] | None,
    limit: int,
) -> Sequence[BundleRow]:
    """Newest first, after the position `after`. `where` compares columns by name; None compares nothing."""
    statement = select(BundleRow).order_by(BundleRow.created_at.desc(), BundleRow.digest.desc()).limit(limit)
    for column, value in where.items():
        if value is not None:
            statement = statement.where(getattr(BundleRow, column) == value)
    if text is not None:
        statement = statement.where(BundleRow.name.contains(text, autoescape=True))
    if tag is not None:
        statement = statement.where(BundleRow.digest.in_(select(TagRow.bundle).where(TagRow.tag == tag)))
    if route is not None:
        routed = select(ArtifactRow.bundle).where(ArtifactRow.route == route)
        statement = statement.where(BundleRow.digest.in_(routed))
    if namespaces:
        statement = statement.where(BundleRow.namespace.in_(namespaces))
    if after is not None:
        at, digest = after
        older = and_(BundleRow.created_at == at, BundleRow.digest < digest)
        statement = statement.where(or_(BundleRow.created_at < at, older))
    return session.scalars(statement).all()


def outlines_of(bundles: Iterable[Digest], session: Session) -> dict[Digest, tuple[tuple[str, ...], int]]:
    """The routes of each bundle, sorted, and how many regions it has."""
    wanted = list(bundles)
    if not wanted:
        return {}
    routes: dict[Digest, set[str]] = {}
    regions: dict[Digest, set[str]] = {}
    rows = session.execute(
        select(ArtifactRow.bundle, ArtifactRow.route, ArtifactRow.region).where(ArtifactRow.bundle.in_(wanted))
    )
    for bundle, route, region in rows:
        routes.setdefault(bundle, set()).add(route)
        regions.setdefault(bundle, set()).add(region)
    return {bundle: (tuple(sorted(routes[bundle])), len(regions[bundle])) for bundle in routes}


def _resolving() -> Select[Any]:
    # A second look at the tags inside the one query: `Resolved.tags` are all of the bundle's, not only the one asked.
    every = TagRow.__table__.alias("every_tag")
    tags = (
        select(func.aggregate_strings(every.c.tag, ","))
        .where(every.c.bundle == BundleRow.digest)
        .correlate(BundleRow)
        .scalar_subquery()
    )
    return select(
        BundleRow.digest,
        BundleRow.manifest,
        BundleRow.envelope,
        BundleRow.state,
        BundleRow.withdrawn_reason,
        BundleRow.replacement,
        BundleRow.damage,
        tags.label("tags"),
    )


def _resolved(statement: Select[Any], session: Session) -> tuple[Resolved, ...]:
    return tuple(
        Resolved(*row[:-1], tags=tuple(sorted(Tag(tag) for tag in row[-1].split(",")) if row[-1] else ()))
        for row in session.execute(statement)
    )
