"""Migrations are additive: while versions mix, the one before still reads and writes what an `upgrade()` leaves.

What is to go goes a release later, in the first revision of the next thousand, which the version before does not serve
(`registry.db.migrate.standing_of`), or with a reason in ALLOWED.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

MIGRATIONS = sorted((Path(__file__).parents[2] / "migrations/versions").glob("*.py"))
# Revision -> what it takes away -> why no version that may still run misses it.
ALLOWED: dict[str, dict[str, str]] = {}
TAKES_AWAY = ("drop_column", "drop_table", "rename_table", "drop_constraint")
SQL = re.compile(r"\b(DROP\s+(TABLE|COLUMN)|RENAME\s+(TO|COLUMN)|ALTER\s+COLUMN)\b", re.I)


def upgrading(module: ast.Module) -> Iterator[ast.Call]:
    """Every call that `upgrade` makes, in itself and in the module's functions that it calls."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    due, seen = ["upgrade"], set[str]()
    while due:
        name = due.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Name):
                due.append(node.id)  # called, or handed to what calls it
            if isinstance(node, ast.Call):
                yield node


def breaks(source: str) -> list[str]:
    """What the version before would miss, as `operation(arguments)`."""
    found = []
    for call in upgrading(ast.parse(source)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        words = {keyword.arg: keyword.value for keyword in call.keywords}
        text = " ".join(node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and _is_text(node))
        if (
            name in TAKES_AWAY
            or (name == "alter_column" and set(words) & {"new_column_name", "nullable", "type_"})
            or (name in ("execute", "text") and SQL.search(text))
            or (name == "add_column" and _is_demanded(call))
        ):
            found.append(ast.unparse(call))
    return found


def _is_text(node: ast.Constant) -> bool:
    return isinstance(node.value, str)


def _is_demanded(add_column: ast.Call) -> bool:
    """A column that an insert of the version before does not fill, and nothing else does."""
    columns = [arg for arg in add_column.args if isinstance(arg, ast.Call)]
    words = {keyword.arg: ast.unparse(keyword.value) for column in columns for keyword in column.keywords}
    return words.get("nullable") == "False" and "server_default" not in words


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.stem)
def test_no_upgrade_takes_away_what_the_version_before_uses(path: Path) -> None:
    revision = path.stem.partition("_")[0]
    if int(revision) % 1000 == 0:
        return
    allowed = ALLOWED.get(revision, {})
    assert all(allowed.values()), "a reason"
    assert [found for found in breaks(path.read_text()) if found not in allowed] == []


def test_there_are_migrations_and_what_is_allowed_is_in_them() -> None:
    assert len(MIGRATIONS) >= 8
    sources = {path.stem.partition("_")[0]: path.read_text() for path in MIGRATIONS}
    for revision, reasons in ALLOWED.items():
        assert set(reasons) <= set(breaks(sources[revision]))


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("op.drop_column('builds', 'worker')", 1),
        ("op.drop_table('builds')", 1),
        ("op.rename_table('builds', 'jobs')", 1),
        ("op.alter_column('builds', 'worker', new_column_name='holder')", 1),
        ("op.alter_column('builds', 'worker', nullable=False)", 1),
        ("op.execute('ALTER TABLE builds DROP COLUMN worker')", 1),
        ("op.execute(sa.text('alter table builds rename to jobs'))", 2),
        ("op.add_column('builds', sa.Column('new', sa.Integer(), nullable=False))", 1),
        ("with op.batch_alter_table('builds') as batch:\n        batch.drop_column('worker')", 1),
        ("_later()", 1),
        ("op.add_column('builds', sa.Column('new', sa.Integer(), nullable=False, server_default='0'))", 0),
        ("op.add_column('builds', sa.Column('new', sa.Integer(), nullable=True))", 0),
        ("op.drop_index('ix_builds_name', 'builds')", 0),
        ("op.create_table('new', sa.Column('id', sa.String(), nullable=False))", 0),
        ("op.execute('UPDATE builds SET step = 1')", 0),
    ],
)
def test_each_way_to_take_something_away_is_seen(body: str, count: int) -> None:
    source = f"def upgrade():\n    {body}\n\ndef downgrade():\n    op.drop_table('new')\n\n"
    assert len(breaks(source + "def _later():\n    op.drop_column('builds', 'worker')\n")) == count
