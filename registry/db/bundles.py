"""SQL over bundles and artifacts. What a pod asks at its start (resolve, links) is one Core query each."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, or_, select, tuple_, update
from sqlalchemy.orm import Session, defer

from aot.schema.digest import Digest
from aot.schema.names import Namespace, Tag
from aot.schema.recipe import Route
from aot.schema.state import BundleState
from registry.db.builds import Asked
from registry.db.guards import AskedGuard, narrowed
from registry.db.models import ArtifactBlobRow, ArtifactRow, BundleRow, GuardRow, KernelRow, TagRow
from registry.db.session import add_if_absent

# Up to megabytes each: read when somebody asks for the attribute, while the session is open.
_WITHOUT_DOCUMENTS = (defer(BundleRow.manifest), defer(BundleRow.envelope))


def find_bundle(digest: Digest, session: Session) -> BundleRow | None:
    return session.get(BundleRow, digest, options=_WITHOUT_DOCUMENTS)


def hold_bundle(digest: Digest, session: Session) -> bool:
    """Keep retention off the bundle until the transaction ends. False where it is gone."""
    held = select(BundleRow.digest).where(BundleRow.digest == digest).with_for_update(key_share=True, read=True)
    return session.scalar(held) is not None


def hold_bundles(bundles: Iterable[Digest], session: Session) -> None:
    """Keep other writers off several bundles until the transaction ends.

    In the order of their digests, as everybody who changes several takes them: in that of the planner two could wait
    for each other, which PostgreSQL ends with an error for one of them. Whoever holds tags holds these first.
    """
    wanted = sorted(set(bundles))
    if len(wanted) > 1:
        query = select(BundleRow.digest).where(BundleRow.digest.in_(wanted)).order_by(BundleRow.digest)
        session.execute(query.with_for_update(key_share=True)).all()


def insert_bundle(
    row: BundleRow,
    *,
    artifacts: Sequence[ArtifactRow],
    files: Sequence[ArtifactBlobRow],
    kernels: Sequence[KernelRow],
    guards: Sequence[GuardRow],
    session: Session,
) -> bool:
    """False where the bundle exists already."""
    if not add_if_absent(row, session):
        return False
    session.add_all(artifacts)
    session.flush()
    session.add_all(files)
    session.add_all(kernels)
    session.add_all(guards)
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


def find_of_key(asked: Asked, states: Sequence[BundleState], session: Session) -> Sequence[BundleRow]:
    """Every bundle of the key in one of these states, the newest first."""
    namespace, name, key = asked
    return session.scalars(
        select(BundleRow)
        .where(BundleRow.namespace == namespace, BundleRow.name == name, BundleRow.build_key == key)
        .where(BundleRow.state.in_(states))
        .order_by(BundleRow.created_at.desc(), BundleRow.digest)
    ).all()


def search_bundles(
    session: Session,
    *,
    where: dict[str, Any],
    text: str | None,
    tag: Tag | None,
    route: Route | None,
    guards: Sequence[AskedGuard],
    namespaces: Sequence[Namespace],
    after: tuple[datetime, Digest] | None,
    limit: int,
) -> Sequence[BundleRow]:
    """Newest first, after the position `after`. `where` compares columns by name; None compares nothing."""
    newest = select(BundleRow).order_by(BundleRow.created_at.desc(), BundleRow.digest.desc()).limit(limit)
    statement = newest.options(*_WITHOUT_DOCUMENTS)
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
    statement = narrowed(statement, guards, session)
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
