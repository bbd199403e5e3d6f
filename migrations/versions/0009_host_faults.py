"""How often a build was given back because a host failed: nothing else ends it. Additive."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default: a replica of the old version inserts builds and knows nothing of it.
    op.add_column("builds", sa.Column("host_faults", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("builds", "host_faults")
