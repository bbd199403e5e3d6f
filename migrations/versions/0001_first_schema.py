"""The first schema: every row of the registry.

Types are spelled in plain SQL terms, so that this file keeps meaning what it meant when the models move on.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
LIVE = "state IN ('queued', 'running')"


def create_blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("stored_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_blobs"),
    )


def create_namespaces() -> None:
    op.create_table(
        "namespaces",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_namespaces"),
    )


def create_profiles() -> None:
    op.create_table(
        "profiles",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_profiles"),
    )


def create_receipts() -> None:
    op.create_table(
        "receipts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("received_at", TIME, nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("bundle", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("counters", sa.Text(), nullable=False),
        sa.Column("stale_tag", sa.Boolean(), nullable=False),
        sa.Column("load_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_receipts"),
    )
    op.create_index("ix_receipts_bundle", "receipts", ["bundle"])
    op.create_index("ix_receipts_model", "receipts", ["namespace", "name", "id"])


def create_signing_keys() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("public", sa.Text(), nullable=False),
        sa.Column("first_used_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("public", name="pk_signing_keys"),
    )


def create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )


def create_builds() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("build_key", sa.String(), nullable=False),
        sa.Column("factors", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("requalify", sa.String(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("lease_expires_at", TIME, nullable=True),
        sa.Column("released_by", sa.String(), nullable=True),
        sa.Column("released_at", TIME, nullable=True),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=False),
        sa.Column("setback", sa.Text(), nullable=False),
        sa.Column("sent_at", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("bundle", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("report", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name="fk_builds_namespace"),
        sa.ForeignKeyConstraint(["profile"], ["profiles.name"], name="fk_builds_profile"),
        sa.PrimaryKeyConstraint("id", name="pk_builds"),
    )
    op.create_index("ix_builds_bundle", "builds", ["bundle"])
    op.create_index(
        "ix_builds_live",
        "builds",
        ["state", "profile", "priority", "id"],
        sqlite_where=sa.text(LIVE),
        postgresql_where=sa.text(LIVE),
    )
    op.create_index("ix_builds_name", "builds", ["namespace", "name", "id"])
    op.create_index(
        "uq_builds_live_key",
        "builds",
        ["namespace", "name", "build_key"],
        unique=True,
        sqlite_where=sa.text(f"{LIVE} AND requalify IS NULL"),
        postgresql_where=sa.text(f"{LIVE} AND requalify IS NULL"),
    )
    op.create_index(
        "uq_builds_live_requalify",
        "builds",
        ["requalify"],
        unique=True,
        sqlite_where=sa.text(f"{LIVE} AND requalify IS NOT NULL"),
        postgresql_where=sa.text(f"{LIVE} AND requalify IS NOT NULL"),
    )


def create_namespace_blobs() -> None:
    op.create_table(
        "namespace_blobs",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("opened_at", TIME, nullable=False),
        sa.Column("stored_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["digest"], ["blobs.digest"], name="fk_namespace_blobs_digest"),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name="fk_namespace_blobs_namespace"),
        sa.PrimaryKeyConstraint("namespace", "digest", name="pk_namespace_blobs"),
    )
    op.create_index("ix_namespace_blobs_digest", "namespace_blobs", ["digest"])


def create_worker_profiles() -> None:
    op.create_table(
        "worker_profiles",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["profile"], ["profiles.name"], name="fk_worker_profiles_profile"),
        sa.ForeignKeyConstraint(["worker"], ["workers.name"], name="fk_worker_profiles_worker"),
        sa.PrimaryKeyConstraint("worker", "profile", name="pk_worker_profiles"),
    )
    op.create_index("ix_worker_profiles_profile", "worker_profiles", ["profile"])


def create_build_lines() -> None:
    op.create_table(
        "build_lines",
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name="fk_build_lines_build"),
        sa.PrimaryKeyConstraint("build", "sequence", name="pk_build_lines"),
    )


def create_bundles() -> None:
    op.create_table(
        "bundles",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("build_key", sa.String(), nullable=False),
        sa.Column("build", sa.Text(), nullable=True),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("capability", sa.String(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("frozen", sa.Boolean(), nullable=False),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("published_at", TIME, nullable=True),
        sa.Column("withdrawn_at", TIME, nullable=True),
        sa.Column("withdrawn_reason", sa.Text(), nullable=False),
        sa.Column("replacement", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name="fk_bundles_build"),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name="fk_bundles_namespace"),
        sa.ForeignKeyConstraint(["profile"], ["profiles.name"], name="fk_bundles_profile"),
        sa.PrimaryKeyConstraint("digest", name="pk_bundles"),
    )
    op.create_index("ix_bundles_created", "bundles", ["created_at", "digest"])
    op.create_index("ix_bundles_key", "bundles", ["namespace", "name", "build_key"])


def create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("namespaces", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name="fk_tokens_build"),
        sa.PrimaryKeyConstraint("hash", name="pk_tokens"),
    )
    op.create_index("ix_tokens_expires_at", "tokens", ["expires_at"])


def create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("capability", sa.String(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("coverage", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.digest"], name="fk_artifacts_bundle"),
        sa.PrimaryKeyConstraint("bundle", "position", name="pk_artifacts"),
    )


def create_tags() -> None:
    op.create_table(
        "tags",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("moved_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.digest"], name="fk_tags_bundle"),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name="fk_tags_namespace"),
        sa.ForeignKeyConstraint(["profile"], ["profiles.name"], name="fk_tags_profile"),
        sa.PrimaryKeyConstraint("namespace", "name", "tag", "profile", name="pk_tags"),
    )
    op.create_index("ix_tags_bundle", "tags", ["bundle"])


def create_artifact_blobs() -> None:
    op.create_table(
        "artifact_blobs",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("artifact", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["bundle", "artifact"],
            ["artifacts.bundle", "artifacts.position"],
            name="fk_artifact_blobs_bundle_artifact",
        ),
        sa.ForeignKeyConstraint(["digest"], ["blobs.digest"], name="fk_artifact_blobs_digest"),
        sa.PrimaryKeyConstraint("bundle", "position", name="pk_artifact_blobs"),
    )
    op.create_index("ix_artifact_blobs_digest", "artifact_blobs", ["digest"])


TABLES = (
    ("blobs", create_blobs),
    ("namespaces", create_namespaces),
    ("profiles", create_profiles),
    ("receipts", create_receipts),
    ("signing_keys", create_signing_keys),
    ("workers", create_workers),
    ("builds", create_builds),
    ("namespace_blobs", create_namespace_blobs),
    ("worker_profiles", create_worker_profiles),
    ("build_lines", create_build_lines),
    ("bundles", create_bundles),
    ("tokens", create_tokens),
    ("artifacts", create_artifacts),
    ("tags", create_tags),
    ("artifact_blobs", create_artifact_blobs),
)


def upgrade() -> None:
    for _, create in TABLES:
        create()


def downgrade() -> None:
    for name, _ in reversed(TABLES):
        op.drop_table(name)
