"""The few blobs that are held while the object store works on their bytes. Additive.

On PostgreSQL writes to the table wait while the index is made: some seconds for a million blobs.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    held = sa.text("state = 'deleting' AND condemned_at IS NULL")
    op.create_index("ix_blobs_held", "blobs", ["condemned_at", "created_at"], sqlite_where=held, postgresql_where=held)


def downgrade() -> None:
    # No version before releases what a killed process has left held. As `registry.db.held.half_done` does it: bytes may
    # have been removed, so what was seen of the row before counts no more.
    op.execute(
        "UPDATE blobs SET state = 'pending', condemned_at = created_at "
        "WHERE state = 'deleting' AND condemned_at IS NULL"
    )
    op.drop_index("ix_blobs_held", "blobs")
