"""Kernels by the beginning of their names, and the few bundles that wait for a proof. Additive.

On PostgreSQL writes to both tables wait while the indexes are made: some seconds for a million kernels.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Kernels' names may be longer than an index takes. Bytes, not the words of a language, are what a prefix is of.
HEAD = {"sqlite": "substr(name, 1, 128)", "postgresql": 'substr(name, 1, 128) COLLATE "C"'}


def upgrade() -> None:
    head = HEAD[op.get_bind().dialect.name]
    op.create_index("ix_kernels_head", "kernels", [sa.text(head), "bundle", "position"])
    pending = sa.text("state = 'pending'")
    op.create_index("ix_bundles_pending", "bundles", ["digest"], sqlite_where=pending, postgresql_where=pending)


def downgrade() -> None:
    op.drop_index("ix_bundles_pending", "bundles")
    op.drop_index("ix_kernels_head", "kernels")
