"""Kernels of bundles, so that they can be searched. Bundles published before hold no facts of them to index."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kernels",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("capability", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("blob", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("registers", sa.BigInteger(), nullable=True),
        sa.Column("scalar_registers", sa.BigInteger(), nullable=True),
        sa.Column("shared_bytes", sa.BigInteger(), nullable=True),
        sa.Column("spill_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("bundle", "position", name="pk_kernels"),
        sa.ForeignKeyConstraint(
            ["bundle", "artifact"], ["artifacts.bundle", "artifacts.position"], name="fk_kernels_bundle_artifact"
        ),
        sa.ForeignKeyConstraint(["blob"], ["blobs.digest"], name="fk_kernels_blob"),
    )
    op.create_index("ix_kernels_capability", "kernels", ["capability"])
    op.create_index("ix_kernels_blob", "kernels", ["blob"])


def downgrade() -> None:
    op.drop_table("kernels")
