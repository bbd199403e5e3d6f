"""How often a build was given back because its worker was told to end: such make no later attempt wait. Additive."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default: a replica of the old version inserts builds and knows nothing of it.
    op.add_column("builds", sa.Column("shutdowns", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("builds", "shutdowns")
