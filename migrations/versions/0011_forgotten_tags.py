"""Tags that were removed, whose records in the object store are to go. Additive.

A version before, which removes none, knows nothing of it: a record that it writes at the moment of a removal is left.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

PLACE = ("namespace", "name", "tag", "profile")


def upgrade() -> None:
    op.create_table(
        "forgotten_tags",
        *(sa.Column(name, sa.String(), nullable=False) for name in PLACE),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(*PLACE, name="pk_forgotten_tags"),
    )


def downgrade() -> None:
    op.drop_table("forgotten_tags")
