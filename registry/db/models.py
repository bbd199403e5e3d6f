"""Rows of blobs, builds and bundles (design.md, section 6), beside those of the fleet (`registry.db.fleet_models`).

The manifest is the truth; what a bundle's rows repeat of it is an index.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Index, column, text
from sqlalchemy.orm import Mapped, mapped_column

from aot.schema.capability import Capability
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.recipe import Route
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import Spec
from aot.schema.state import BlobState, BuildState, BundleState
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.db.fleet_models import Row
from registry.db.types import Bytes, Head, Json, Plain, UtcTime, Word

LIVE_BUILD = "state IN ('queued', 'running')"
READY_BUILD = "state = 'queued' AND waiting = ''"
PENDING_BUNDLE = "state = 'pending'"
HELD_BLOB = "state = 'deleting' AND condemned_at IS NULL"
UNRECORDED = "recorded_at IS NULL AND state IN ('live', 'withdrawn')"
# Rows whose record is still to be written. A version that does not sign records sets `recorded_at` alone.
UNSEALED_TAG = "recorded_at IS NULL OR sealed_at IS NULL OR recorded_at <> sealed_at"
UNSEALED_BUNDLE = f"state IN ('live', 'withdrawn') AND ({UNSEALED_TAG})"


def _where(condition: str) -> dict[str, Any]:
    """Of an index of those rows alone for which the condition holds."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class BlobRow(Row):
    __tablename__ = "blobs"
    # `condemned_at` is empty in it, and makes SQLite prefer it to that column's own, in which most rows are.
    __table_args__ = (Index("ix_blobs_held", "condemned_at", "created_at", **_where(HELD_BLOB)),)

    digest: Mapped[Digest] = mapped_column(Word(Digest), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[BlobState] = mapped_column(Word(BlobState))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    stored_at: Mapped[datetime | None] = mapped_column(UtcTime)
    condemned_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)


class NamespaceBlobRow(Row):
    """A namespace's view of a blob: opened for upload, and present once `stored_at` is set."""

    __tablename__ = "namespace_blobs"

    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), ForeignKey("namespaces.name"), primary_key=True)
    digest: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("blobs.digest"), primary_key=True, index=True)
    opened_at: Mapped[datetime] = mapped_column(UtcTime)
    stored_at: Mapped[datetime | None] = mapped_column(UtcTime)


class BuildRow(Row):
    """One spec being turned into a bundle. `requalify` names the pushed bundle that it proves instead."""

    __tablename__ = "builds"
    __table_args__ = (
        # One live build a key. The name is part of it: a bundle carries its name, and a client requires it to match.
        Index(
            "uq_builds_live_key",
            "namespace",
            "name",
            "build_key",
            unique=True,
            **_where(f"{LIVE_BUILD} AND requalify IS NULL"),
        ),
        Index(
            "uq_builds_live_requalify",
            "requalify",
            unique=True,
            **_where(f"{LIVE_BUILD} AND requalify IS NOT NULL"),
        ),
        # What claim and sweep read: the few live rows, never the history.
        Index("ix_builds_live", "state", "profile", "priority", "id", **_where(LIVE_BUILD)),
        Index("ix_builds_name", "namespace", "name", "id"),
        # Of the queue (`registry.db.queue`): each costs what lives, whatever the history.
        Index("ix_builds_ready", "namespace", "profile", "priority", "id", **_where(READY_BUILD)),
        Index("ix_builds_queued", "profile", "id", **_where("state = 'queued'")),
        Index("ix_builds_running", "namespace", "profile", "worker", **_where("state = 'running'")),
    )

    id: Mapped[str] = mapped_column(Plain, primary_key=True)
    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), ForeignKey("namespaces.name"))
    name: Mapped[Name] = mapped_column(Word(Name))
    profile: Mapped[Name] = mapped_column(Word(Name), ForeignKey("profiles.name"))
    build_key: Mapped[BuildKey] = mapped_column(Word(BuildKey))
    factors: Mapped[tuple[Factor, ...]] = mapped_column(Json(tuple[Factor, ...]))
    spec: Mapped[Spec] = mapped_column(Json(Spec))
    tags: Mapped[tuple[Tag, ...]] = mapped_column(Json(tuple[Tag, ...]))
    requalify: Mapped[Digest | None] = mapped_column(Word(Digest))
    priority: Mapped[int]
    submitted_by: Mapped[str] = mapped_column(Plain)

    state: Mapped[BuildState] = mapped_column(Word(BuildState))
    attempt: Mapped[int]
    lost_leases: Mapped[int]
    host_faults: Mapped[int] = mapped_column(server_default="0")  # after which it was given back
    shutdowns: Mapped[int] = mapped_column(server_default="0")  # of workers that gave it back
    worker: Mapped[Name | None] = mapped_column(Word(Name))
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcTime)
    released_by: Mapped[Name | None] = mapped_column(Word(Name))
    released_at: Mapped[datetime | None] = mapped_column(UtcTime)
    phase: Mapped[Phase | None] = mapped_column(Word(Phase))
    step: Mapped[str] = mapped_column(Plain)
    waiting: Mapped[str] = mapped_column(Plain)  # why no worker takes it now
    setback: Mapped[str] = mapped_column(Plain)  # why its last attempt did not end it
    sent_at: Mapped[datetime] = mapped_column(UtcTime)

    created_at: Mapped[datetime] = mapped_column(UtcTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcTime)
    bundle: Mapped[Digest | None] = mapped_column(Word(Digest), index=True)
    error: Mapped[ErrorBody | None] = mapped_column(Json(ErrorBody))
    report: Mapped[CompileReport | None] = mapped_column(Json(CompileReport))


class NamespaceClaimRow(Row):
    """When a namespace last got a worker: the next one is another namespace's, where one waits."""

    __tablename__ = "namespace_claims"

    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), ForeignKey("namespaces.name"), primary_key=True)
    claimed_at: Mapped[datetime] = mapped_column(UtcTime)


class BuildLineRow(Row):
    __tablename__ = "build_lines"

    build: Mapped[str] = mapped_column(Plain, ForeignKey("builds.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(UtcTime)
    text: Mapped[str] = mapped_column(Json(str))


class BundleRow(Row):
    """A bundle by its manifest's digest. `manifest` holds exactly the bytes that the digest is over."""

    __tablename__ = "bundles"
    __table_args__ = (
        Index("ix_bundles_key", "namespace", "name", "build_key"),
        Index("ix_bundles_created", "created_at", "digest"),
        Index("ix_bundles_pending", "digest", **_where(PENDING_BUNDLE)),
        Index("ix_bundles_unrecorded", "digest", **_where(UNRECORDED)),
        Index("ix_bundles_unsealed", "digest", **_where(UNSEALED_BUNDLE)),
        Index("ix_bundles_damaged", "digest", **_where("damage IS NOT NULL")),
    )

    digest: Mapped[Digest] = mapped_column(Word(Digest), primary_key=True)
    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), ForeignKey("namespaces.name"))
    name: Mapped[Name] = mapped_column(Word(Name))
    profile: Mapped[Name] = mapped_column(Word(Name), ForeignKey("profiles.name"))
    build_key: Mapped[BuildKey] = mapped_column(Word(BuildKey))
    build: Mapped[str | None] = mapped_column(Plain, ForeignKey("builds.id"))
    manifest: Mapped[bytes] = mapped_column(Bytes)
    envelope: Mapped[Envelope | None] = mapped_column(Json(Envelope))
    state: Mapped[BundleState] = mapped_column(Word(BundleState))

    capability: Mapped[Capability] = mapped_column(Word(Capability))
    torch: Mapped[str] = mapped_column(Plain)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    frozen: Mapped[bool]
    speedup: Mapped[float | None]

    created_at: Mapped[datetime] = mapped_column(UtcTime)
    published_at: Mapped[datetime | None] = mapped_column(UtcTime)
    withdrawn_at: Mapped[datetime | None] = mapped_column(UtcTime)
    withdrawn_reason: Mapped[str] = mapped_column(Plain)
    replacement: Mapped[Digest | None] = mapped_column(Word(Digest))
    used_at: Mapped[datetime | None] = mapped_column(UtcTime)  # by digest: what a lock pins is seen by its use
    recorded_at: Mapped[datetime | None] = mapped_column(UtcTime)  # None: the object store has another account
    sealed_at: Mapped[datetime | None] = mapped_column(UtcTime)  # the same time, where that account is signed
    damage: Mapped[str | None] = mapped_column(Plain)  # why its bytes cannot be had now


class ArtifactRow(Row):
    __tablename__ = "artifacts"

    bundle: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("bundles.digest"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    region: Mapped[str] = mapped_column(Plain)
    route: Mapped[Route] = mapped_column(Word(Route))
    capability: Mapped[Capability] = mapped_column(Word(Capability))
    torch: Mapped[str] = mapped_column(Plain)
    coverage: Mapped[str] = mapped_column(Plain)


class ArtifactBlobRow(Row):
    """One file of an artifact, its canaries' expected outputs included. Paths may repeat between two canaries."""

    __tablename__ = "artifact_blobs"
    __table_args__ = (ForeignKeyConstraint(["bundle", "artifact"], ["artifacts.bundle", "artifacts.position"]),)

    bundle: Mapped[Digest] = mapped_column(Word(Digest), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    artifact: Mapped[int]
    path: Mapped[str] = mapped_column(Plain)
    digest: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("blobs.digest"), index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class KernelRow(Row):
    """One kernel in a file of an artifact: the index of what the manifest says its bytes hold."""

    __tablename__ = "kernels"
    __table_args__ = (
        ForeignKeyConstraint(["bundle", "artifact"], ["artifacts.bundle", "artifacts.position"]),
        Index("ix_kernels_head", Head(column("name")), "bundle", "position"),
    )

    bundle: Mapped[Digest] = mapped_column(Word(Digest), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    artifact: Mapped[int]
    name: Mapped[str] = mapped_column(Plain)
    capability: Mapped[Capability] = mapped_column(Word(Capability), index=True)
    path: Mapped[str] = mapped_column(Plain)
    blob: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("blobs.digest"), index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    registers: Mapped[int | None] = mapped_column(BigInteger)
    scalar_registers: Mapped[int | None] = mapped_column(BigInteger)
    shared_bytes: Mapped[int | None] = mapped_column(BigInteger)
    spill_bytes: Mapped[int | None] = mapped_column(BigInteger)


class GuardRow(Row):
    """One condition that an artifact of the bundle puts: the index of its manifest's guards."""

    __tablename__ = "guards"
    __table_args__ = (Index("ix_guards_kind_value_bundle", "kind", "value", "bundle"),)

    bundle: Mapped[Digest] = mapped_column(
        Word(Digest), ForeignKey("bundles.digest", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(Plain, primary_key=True)
    value: Mapped[str] = mapped_column(Plain, primary_key=True)


class MeasurementRow(Row):
    """What tuning had measured when the bundle was built, as a blob; `key` says of which device and toolchain."""

    __tablename__ = "measurements"
    __table_args__ = (Index("ix_measurements_namespace_key", "namespace", "key"),)

    bundle: Mapped[Digest] = mapped_column(
        Word(Digest), ForeignKey("bundles.digest", ondelete="CASCADE"), primary_key=True
    )
    namespace: Mapped[Namespace] = mapped_column(Word(Namespace))
    key: Mapped[Digest] = mapped_column(Word(Digest))
    blob: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("blobs.digest", ondelete="CASCADE"), index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class TagRow(Row):
    """A movable name. It stands for one bundle a profile, so that one tag serves a fleet."""

    __tablename__ = "tags"
    __table_args__ = (
        Index("ix_tags_unrecorded", "bundle", **_where("recorded_at IS NULL")),
        Index("ix_tags_unsealed", "bundle", **_where(UNSEALED_TAG)),
    )

    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), ForeignKey("namespaces.name"), primary_key=True)
    name: Mapped[Name] = mapped_column(Word(Name), primary_key=True)
    tag: Mapped[Tag] = mapped_column(Word(Tag), primary_key=True)
    profile: Mapped[Name] = mapped_column(Word(Name), ForeignKey("profiles.name"), primary_key=True)
    bundle: Mapped[Digest] = mapped_column(Word(Digest), ForeignKey("bundles.digest"), index=True)
    moved_at: Mapped[datetime] = mapped_column(UtcTime)
    recorded_at: Mapped[datetime | None] = mapped_column(UtcTime)
    sealed_at: Mapped[datetime | None] = mapped_column(UtcTime)


class ForgottenRecordRow(Row):
    """A bundle whose rows have expired and whose record in the object store is still to be removed.

    `note` changes whenever that is asked for again: who removed a record before has not done it since. It tells when
    that was (`registry.db.records.noted_at`): a version that tells no time would leave a column of its own as it is.
    """

    __tablename__ = "forgotten_records"

    bundle: Mapped[Digest] = mapped_column(Word(Digest), primary_key=True)
    note: Mapped[str] = mapped_column(Plain)


class ForgottenTagRow(Row):
    """The same of a tag that was removed; it may stand for something again by then."""

    __tablename__ = "forgotten_tags"

    namespace: Mapped[Namespace] = mapped_column(Word(Namespace), primary_key=True)
    name: Mapped[Name] = mapped_column(Word(Name), primary_key=True)
    tag: Mapped[Tag] = mapped_column(Word(Tag), primary_key=True)
    profile: Mapped[Name] = mapped_column(Word(Name), primary_key=True)
    note: Mapped[str] = mapped_column(Plain)


class TokenRow(Row):
    """A bearer token by the SHA-256 of its secret. `namespaces` empty: all. `build` set: bound to one attempt."""

    __tablename__ = "tokens"

    hash: Mapped[str] = mapped_column(Plain, primary_key=True)
    label: Mapped[str] = mapped_column(Plain)
    scopes: Mapped[tuple[Scope, ...]] = mapped_column(Json(tuple[Scope, ...]))
    namespaces: Mapped[tuple[Namespace, ...]] = mapped_column(Json(tuple[Namespace, ...]))
    build: Mapped[str | None] = mapped_column(Plain, ForeignKey("builds.id"))
    attempt: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
