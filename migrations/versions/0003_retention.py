"""What retention, records in the object store and fsck must know of bundles, blobs and tags. Additive."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS = (
    ("bundles", "used_at", sa.DateTime(timezone=True)),
    ("bundles", "recorded_at", sa.DateTime(timezone=True)),
    ("bundles", "damage", sa.Text()),
    ("blobs", "condemned_at", sa.DateTime(timezone=True)),
    ("tags", "recorded_at", sa.DateTime(timezone=True)),
)
# What the sweeper looks for: a few rows of many.
PARTIAL = (
    ("ix_bundles_unrecorded", "bundles", "digest", "recorded_at IS NULL AND state IN ('live', 'withdrawn')"),
    ("ix_bundles_damaged", "bundles", "digest", "damage IS NOT NULL"),
    ("ix_tags_unrecorded", "tags", "bundle", "recorded_at IS NULL"),
)


def upgrade() -> None:
    for table, name, kind in COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    op.create_index("ix_blobs_condemned_at", "blobs", ["condemned_at"])
    for name, table, column, where in PARTIAL:
        where_clause = sa.text(where)
        op.create_index(name, table, [column], sqlite_where=where_clause, postgresql_where=where_clause)


def downgrade() -> None:
    for name, table, _, _ in PARTIAL:
        op.drop_index(name, table)
    op.drop_index("ix_blobs_condemned_at", "blobs")
    for table, name, _ in reversed(COLUMNS):
        op.drop_column(table, name)
