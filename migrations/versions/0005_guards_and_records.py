"""Guards of bundles, so that they can be searched; records that are to go; every record is due again, signed. Additive.

Bundles of before are indexed here, from their manifests; those that a replica of the old version publishes while
versions mix, by the next `fsck`.
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


def upgrade() -> None:
    op.create_table(
        "guards",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("bundle", "kind", "value", name="pk_guards"),
        sa.ForeignKeyConstraint(["bundle"], ["bundles.digest"], name="fk_guards_bundle"),
    )
    op.create_index("ix_guards_kind_value_bundle", "guards", ["kind", "value", "bundle"])
    op.create_table(
        "forgotten_records",
        sa.Column("bundle", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("bundle", name="pk_forgotten_records"),
    )
    _index_guards()
    op.execute("UPDATE bundles SET recorded_at = NULL")
    op.execute("UPDATE tags SET recorded_at = NULL")


def downgrade() -> None:
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
            yield guard["kind"], guard["value"][:LONGEST]
        for guard in artifact.get("input_guards", ()):
            value = guard.get("value") or "" if guard["kind"] in SPOKEN else ""
            yield f"input.{guard['kind']}", value[:LONGEST]
