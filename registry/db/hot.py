"""The reads of a pod's start and of every request: who calls, what a name stands for, which blobs to link to.

One statement each, made once and of tables, not of mapped classes: the ORM took five times as long to ask as the
database to answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.spec import Blob
from aot.schema.state import BundleState
from aot.schema.wire.workers import Scope
from registry.db.models import ArtifactBlobRow, BundleRow, TagRow, TokenRow

BUNDLES, TAGS = BundleRow.__table__.c, TagRow.__table__.c
FILES, TOKENS = ArtifactBlobRow.__table__.c, TokenRow.__table__.c


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


class KnownToken(NamedTuple):
    hash: str
    label: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[Namespace, ...]
    build: str | None
    attempt: int | None
    expires_at: datetime | None


def find_token(digest: str, session: Session) -> KnownToken | None:
    """The token whose secret has this SHA-256, expired or not."""
    row = _rows(_TOKEN, {"hash": digest}, session)
    return KnownToken(*row[0]) if row else None


def resolve_tag(namespace: Namespace, name: Name, tag: Tag, *, session: Session) -> tuple[Resolved, ...]:
    """Every bundle that the tag stands for, whatever its state, by profile."""
    return _resolved(_OF_TAG, {"namespace": namespace, "name": name, "tag": tag}, session)


def resolve_digests(digests: Iterable[Digest], session: Session) -> tuple[Resolved, ...]:
    wanted = list(digests)
    return _resolved(_OF_DIGESTS, {"digests": wanted}, session) if wanted else ()


def resolve_pinned(
    namespace: Namespace, name: Name, digests: Sequence[Digest], *, session: Session
) -> tuple[Resolved, ...]:
    """Those of `digests` that are bundles of this model, whatever their state, in the order given."""
    found = _resolved(_PINNED, {"digests": list(digests), "namespace": namespace, "name": name}, session)
    return tuple(sorted(found, key=lambda bundle: digests.index(bundle.digest)))


def blobs_of(digest: Digest, session: Session) -> Listed | None:
    rows = _rows(_FILES_OF, {"bundle": digest}, session)
    if not rows:
        return None
    sizes = {row[5]: row[6] for row in rows if row[5] is not None}
    blobs = tuple(Blob(digest=blob, size_bytes=size) for blob, size in sizes.items())
    return Listed(*rows[0][:5], blobs=blobs)


def _rows(statement: Select[Any], values: Mapping[str, Any], session: Session) -> Sequence[Any]:
    return session.connection().execute(statement, values).all()


def _resolved(statement: Select[Any], values: Mapping[str, Any], session: Session) -> tuple[Resolved, ...]:
    return tuple(
        Resolved(*row[:-1], tags=tuple(sorted(Tag(tag) for tag in row[-1].split(",")) if row[-1] else ()))
        for row in _rows(statement, values, session)
    )


def _resolving() -> Select[Any]:
    # A second look at the tags inside the one query: `Resolved.tags` are all of the bundle's, not only the one asked.
    every = TagRow.__table__.alias("every_tag")
    tags = (
        select(func.aggregate_strings(every.c.tag, ","))
        .where(every.c.bundle == BUNDLES.digest)
        .correlate(BundleRow.__table__)
        .scalar_subquery()
    )
    return select(
        BUNDLES.digest,
        BUNDLES.manifest,
        BUNDLES.envelope,
        BUNDLES.state,
        BUNDLES.withdrawn_reason,
        BUNDLES.replacement,
        BUNDLES.damage,
        tags.label("tags"),
    )


_TOKEN = select(*(TOKENS[name] for name in KnownToken._fields)).where(TOKENS.hash == bindparam("hash"))
_OF_TAG = (
    _resolving()
    .join(TagRow.__table__, TAGS.bundle == BUNDLES.digest)
    .where(
        TAGS.namespace == bindparam("namespace"),
        TAGS.name == bindparam("name"),
        TAGS.tag == bindparam("tag"),
    )
    .order_by(TAGS.profile)
)
_OF_DIGESTS = _resolving().where(BUNDLES.digest.in_(bindparam("digests", expanding=True)))
_PINNED = _OF_DIGESTS.where(BUNDLES.namespace == bindparam("namespace"), BUNDLES.name == bindparam("name"))
_FILES_OF = (
    select(
        BUNDLES.namespace,
        BUNDLES.state,
        BUNDLES.withdrawn_reason,
        BUNDLES.replacement,
        BUNDLES.damage,
        FILES.digest,
        FILES.size_bytes,
    )
    .select_from(BundleRow.__table__)
    .join(ArtifactBlobRow.__table__, FILES.bundle == BUNDLES.digest, isouter=True)
    .where(BUNDLES.digest == bindparam("bundle"))
    .order_by(FILES.position)
)
