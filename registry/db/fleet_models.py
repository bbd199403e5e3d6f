"""Rows of the fleet (design.md, section 6): namespaces, profiles, workers, receipts, and the keys that sign here.

Every other row refers to these, so whoever loads `registry.db.models` has all tables.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.wire.workers import Outcome
from registry.db.types import Json, Plain, UtcTime, Word


class Row(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class NamespaceRow(Row):
    __tablename__ = "namespaces"

    name: Mapped[Namespace] = mapped_column(Word(Namespace), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class ProfileRow(Row):
    __tablename__ = "profiles"

    name: Mapped[Name] = mapped_column(Word(Name), primary_key=True)
    profile: Mapped[Profile] = mapped_column(Json(Profile))
    registered_at: Mapped[datetime] = mapped_column(UtcTime)


class WorkerRow(Row):
    __tablename__ = "workers"

    name: Mapped[Name] = mapped_column(Word(Name), primary_key=True)
    registered_at: Mapped[datetime] = mapped_column(UtcTime)
    seen_at: Mapped[datetime] = mapped_column(UtcTime)


class WorkerProfileRow(Row):
    """What a worker is; `position` 0 is its own profile, the others are levels that it covers."""

    __tablename__ = "worker_profiles"

    worker: Mapped[Name] = mapped_column(Word(Name), ForeignKey("workers.name"), primary_key=True)
    profile: Mapped[Name] = mapped_column(Word(Name), ForeignKey("profiles.name"), primary_key=True, index=True)
    position: Mapped[int]


class ReceiptRow(Row):
    __tablename__ = "receipts"
    __table_args__ = (Index("ix_receipts_model", "namespace", "name", "id"),)

    id: Mapped[str] = mapped_column(Plain, primary_key=True)
    received_at: Mapped[datetime] = mapped_column(UtcTime)
    namespace: Mapped[Namespace] = mapped_column(Word(Namespace))
    name: Mapped[Name] = mapped_column(Word(Name))
    reference: Mapped[str] = mapped_column(Plain)
    bundle: Mapped[Digest | None] = mapped_column(Word(Digest), index=True)  # as told: it need not exist here
    outcome: Mapped[Outcome] = mapped_column(Word(Outcome))
    environment: Mapped[Environment] = mapped_column(Json(Environment))
    reasons: Mapped[tuple[str, ...]] = mapped_column(Json(tuple[str, ...]))
    counters: Mapped[dict[str, int]] = mapped_column(Json(dict[str, int]))
    stale_tag: Mapped[bool]
    load_seconds: Mapped[float]


class KeyRow(Row):
    """A public key that signs now, or did before: a replica that has none of them is set up wrongly."""

    __tablename__ = "signing_keys"

    public: Mapped[str] = mapped_column(Plain, primary_key=True)
    first_used_at: Mapped[datetime] = mapped_column(UtcTime)
