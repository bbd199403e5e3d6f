"""What tuning has measured while a bundle was built, so that later builds need not. Additive.

A sweeper of the old version deletes bundles and blobs and knows nothing of measurements: they go with either.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measurements",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("blob", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("bundle", name="pk_measurements"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.digest"], name="fk_measurements_bundle", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["blob"], ["blobs.digest"], name="fk_measurements_blob", ondelete="CASCADE"),
    )
    op.create_index("ix_measurements_blob", "measurements", ["blob"])
    op.create_index("ix_measurements_namespace_key", "measurements", ["namespace", "key"])


def downgrade() -> None:
    op.drop_table("measurements")
