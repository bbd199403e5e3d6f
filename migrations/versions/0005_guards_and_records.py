"""Guards of bundles, so that they can be searched; records that are to go; every record is due again, signed. Additive.

Bundles of before are indexed here, from their manifests; those that a replica of the old version publishes while
versions mix, by the next `fsck`. A sweeper of the old version deletes bundles and knows nothing of guards: they go with
their bundle. It also writes records unsigned and sets `recorded_at`: a record is due until `sealed_at` is the same.
"""

import json
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

AT_ONCE = 200
LONGEST = 256
SPOKEN = ("dtype", "device")
UNSEALED = "recorded_at IS NULL OR sealed_at IS NULL OR recorded_at <> sealed_at"
# What the sweeper looks for: a few rows of many.
PARTIAL = (
    ("ix_bundles_unsealed", "bundles", "digest", f"state IN ('live', 'withdrawn') AND ({UNSEALED})"),
    ("ix_tags_unsealed", "tags", "bundle", UNSEALED),
)


def upgrade() -> None:
    op.create_table(
        "guards",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("bundle", "kind", "value", name="pk_guards"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.digest"], name="fk_guards_bundle", ondelete="CASCADE"),
    )
    op.create_index("ix_guards_kind_value_bundle", "guards", ["kind", "value", "bundle"])
    op.create_table(
        "forgotten_records",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("bundle", name="pk_forgotten_records"),
    )
    _index_guards()
    for name, table, column, where in PARTIAL:
        op.add_column(table, sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True))
        where_clause = sa.text(where)
        op.create_index(name, table, [column], sqlite_where=where_clause, postgresql_where=where_clause)


def downgrade() -> None:
    for name, table, _, _ in reversed(PARTIAL):
        op.drop_index(name, table)
        op.drop_column(table, "sealed_at")
    op.drop_table("forgotten_records")
    op.drop_table("guards")


def _index_guards() -> None:
    connection = op.get_bind()
    bundles = sa.table("bundles", sa.column("digest", sa.String()), sa.column("manifest", sa.LargeBinary()))
    guards = sa.table("guards", sa.column("bundle"), sa.column("kind"), sa.column("value"))
    after = ""
    while True:
        page = sa.select(bundles).where(bundles.c.digest > after).order_by(bundles.c.digest).limit(AT_ONCE)
        found = connection.execute(page).all()
        if not found:
            return
        rows = [
            {"bundle": digest, "kind": kind, "value": value}
            for digest, manifest in found
            for kind, value in sorted(set(_guards(bytes(manifest))))
        ]
        if rows:
            connection.execute(sa.insert(guards), rows)
        after = found[-1].digest


def _guards(manifest: bytes) -> Iterator[tuple[str, str]]:
    """As `registry.services.guards` had it when this was written."""
    for artifact in json.loads(manifest).get("artifacts", ()):
        for guard in artifact.get("host_guards", ()):
            yield _plain(guard["kind"]), _plain(guard["value"])[:LONGEST]
        for guard in artifact.get("input_guards", ()):
            value = guard.get("value") or "" if guard["kind"] in SPOKEN else ""
            yield f"input.{_plain(guard['kind'])}", _plain(value)[:LONGEST]


def _plain(text: str) -> str:
    """As the column's type writes it: PostgreSQL refuses NUL."""
    return text.replace("\0", "\ufffd")
