"""The reads of a pod's start and of every request: who calls, what a name stands for, which blobs to link to.

One statement each, made once and of tables, not of mapped classes: the ORM took five times as long to ask as the
database to answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Text, bindparam, cast, null, select
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.spec import Blob, Spec
from aot.schema.state import BundleState
from aot.schema.wire.workers import Scope
from registry.db.models import ArtifactBlobRow, BuildRow, BundleRow, TagRow, TokenRow
from registry.db.types import Joined

Reader = Session | Connection
"""What a statement goes through: a glance is a connection, without the session that only the ORM needs."""
BUNDLES, TAGS = BundleRow.__table__.c, TagRow.__table__.c
FILES, TOKENS, BUILDS = ArtifactBlobRow.__table__.c, TokenRow.__table__.c, BuildRow.__table__.c


@dataclass(frozen=True)
class Resolved:
    """What a pod needs of a bundle, and what it must be told where there is nothing to give.

    `blobs`: those that it names, where they were asked for; of more than `most_blobs` one more than that, whichever.
    """

    digest: Digest
    manifest: bytes
    envelope: Envelope | None
    state: BundleState
    withdrawn_reason: str
    replacement: Digest | None
    damage: str | None
    tags: tuple[Tag, ...]
    blobs: tuple[Blob, ...] = ()


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


class Attempt(NamedTuple):
    spec: Spec
    requalify: Digest | None  # the pushed bundle that it proves


def find_token(digest: str, reader: Reader) -> KnownToken | None:
    """The token whose secret has this SHA-256, expired or not."""
    row = _rows(_TOKEN, {"hash": digest}, reader)
    return KnownToken(*row[0]) if row else None


def resolve_tag(
    namespace: Namespace, name: Name, tag: Tag, *, most_blobs: int = 0, reader: Reader
) -> tuple[Resolved, ...]:
    """Every bundle that the tag stands for, whatever its state, by profile; with its blobs unless `most_blobs` is 0."""
    values = {"namespace": namespace, "name": name, "tag": tag}
    if most_blobs:
        return _resolved(_OF_TAG_WITH_BLOBS, {**values, "limit": most_blobs + 1}, reader)
    return _resolved(_OF_TAG, values, reader)


def resolve_digests(digests: Iterable[Digest], reader: Reader) -> tuple[Resolved, ...]:
    wanted = list(digests)
    return _resolved(_OF_DIGESTS, {"digests": wanted}, reader) if wanted else ()


def resolve_pinned(
    namespace: Namespace, name: Name, digests: Sequence[Digest], *, most_blobs: int = 0, reader: Reader
) -> tuple[Resolved, ...]:
    """Those of `digests` that are bundles of this model, whatever their state, in the order given; blobs as above."""
    values = {"digests": list(digests), "namespace": namespace, "name": name}
    if most_blobs:
        found = _resolved(_PINNED_WITH_BLOBS, {**values, "limit": most_blobs + 1}, reader)
    else:
        found = _resolved(_PINNED, values, reader)
    return tuple(sorted(found, key=lambda bundle: digests.index(bundle.digest)))


def blobs_of(digest: Digest, reader: Reader) -> Listed | None:
    rows = _rows(_FILES_OF, {"bundle": digest}, reader)
    if not rows:
        return None
    *bundle, files = rows[0]
    return Listed(*bundle, blobs=_blobs(files))


def find_attempt(build: str, attempt: int | None, reader: Reader) -> Attempt | None:
    """What this attempt of the build works on; None where the build is gone, or at another attempt."""
    row = _rows(_ATTEMPT, {"build": build, "attempt": attempt}, reader)
    return Attempt(*row[0]) if row else None


def _blobs(files: str | None) -> tuple[Blob, ...]:
    """Each blob once, in the order of the digests; `files` are "digest size", commas between."""
    each = (file.split() for file in sorted(set(_parts(files))))
    return tuple(Blob(digest=Digest(digest), size_bytes=int(size)) for digest, size in each)


def _parts(joined: str | None) -> list[str]:
    return joined.split(",") if joined else []


def _rows(statement: Select[Any], values: Mapping[str, Any], reader: Reader) -> Sequence[Any]:
    connection = reader if isinstance(reader, Connection) else reader.connection()
    return connection.execute(statement, values).all()


def _resolved(statement: Select[Any], values: Mapping[str, Any], reader: Reader) -> tuple[Resolved, ...]:
    return tuple(
        Resolved(*bundle, tags=tuple(sorted(map(Tag, _parts(tags)))), blobs=_blobs(files))
        for *bundle, tags, files in _rows(statement, values, reader)
    )


def _files() -> ScalarSelect[str]:
    # One value: with a row for every blob, making values of the bundle each time took as long as all the rest.
    return (
        select(Joined(cast(FILES.digest, Text) + " " + cast(FILES.size_bytes, Text)))
        .where(FILES.bundle == BUNDLES.digest)
        .correlate(BundleRow.__table__)
        .scalar_subquery()
    )


def _few_files() -> ScalarSelect[str]:
    # To read and join thousands, which a bundle of small cache entries has, takes three times as long as all the rest.
    few = (
        select(FILES.digest, FILES.size_bytes)
        .distinct()
        .where(FILES.bundle == BUNDLES.digest)
        .correlate(BundleRow.__table__)
        .limit(bindparam("limit"))
        .subquery()
    )
    return select(Joined(cast(few.c.digest, Text) + " " + cast(few.c.size_bytes, Text))).scalar_subquery()


def _resolving(files: ColumnElement[str | None]) -> Select[Any]:
    # A second look at the tags inside the one query: `Resolved.tags` are all of the bundle's, not only the one asked.
    every = TagRow.__table__.alias("every_tag")
    tags = (
        select(Joined(every.c.tag))
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
        files.label("files"),
    )


def _of_tag(files: ColumnElement[str | None]) -> Select[Any]:
    return (
        _resolving(files)
        .join(TagRow.__table__, TAGS.bundle == BUNDLES.digest)
        .where(
            TAGS.namespace == bindparam("namespace"),
            TAGS.name == bindparam("name"),
            TAGS.tag == bindparam("tag"),
        )
        .order_by(TAGS.profile)
    )


def _of_digests(files: ColumnElement[str | None]) -> Select[Any]:
    return _resolving(files).where(BUNDLES.digest.in_(bindparam("digests", expanding=True)))


def _pinned(files: ColumnElement[str | None]) -> Select[Any]:
    return _of_digests(files).where(BUNDLES.namespace == bindparam("namespace"), BUNDLES.name == bindparam("name"))


_TOKEN = select(*(TOKENS[name] for name in KnownToken._fields)).where(TOKENS.hash == bindparam("hash"))
_OF_TAG, _OF_TAG_WITH_BLOBS = _of_tag(null()), _of_tag(_few_files())
_OF_DIGESTS = _of_digests(null())
_PINNED, _PINNED_WITH_BLOBS = _pinned(null()), _pinned(_few_files())
_FILES_OF = select(
    BUNDLES.namespace,
    BUNDLES.state,
    BUNDLES.withdrawn_reason,
    BUNDLES.replacement,
    BUNDLES.damage,
    _files(),
).where(BUNDLES.digest == bindparam("bundle"))
_ATTEMPT = select(BUILDS.spec, BUILDS.requalify).where(
    BUILDS.id == bindparam("build"), BUILDS.attempt == bindparam("attempt")
)
