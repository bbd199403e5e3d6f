"""Turns of namespaces, and indexes that keep a claim as fast with ten thousand waiting builds as with ten. Additive."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

PARTIAL = (
    ("ix_builds_ready", ["namespace", "profile", "priority", "id"], "state = 'queued' AND waiting = ''"),
    ("ix_builds_queued", ["profile", "id"], "state = 'queued'"),
    ("ix_builds_running", ["namespace", "profile", "worker"], "state = 'running'"),
)


def upgrade() -> None:
    op.create_table(
        "namespace_claims",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name="pk_namespace_claims"),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name="fk_namespace_claims_namespace"),
    )
    for name, columns, where in PARTIAL:
        where_clause = sa.text(where)
        op.create_index(name, "builds", columns, sqlite_where=where_clause, postgresql_where=where_clause)


def downgrade() -> None:
    for name, _, _ in PARTIAL:
        op.drop_index(name, "builds")
    op.drop_table("namespace_claims")
