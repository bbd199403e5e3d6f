"""The schema is what the migrations make, and the models say the same; on SQLite and on PostgreSQL."""

import re

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from registry.db.migrate import at_head, migrate
from registry.db.models import Row
from registry.db.session import Sessions, open_sessions


def statements(sessions: Sessions) -> dict[str, str]:
    """Every table and index as SQLite keeps it, without layout."""
    with sessions.engine.connect() as connection:
        rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return {name: _normal(sql) for name, sql in rows if name != "alembic_version"}


def _normal(sql: str) -> str:
    head, _, body = re.sub(r"\s+", " ", sql).partition("(")
    # Columns and constraints in any order, and VARCHAR and TEXT are one type to SQLite and PostgreSQL alike.
    parts = re.split(r",(?![^(]*\))", body.replace("VARCHAR", "TEXT").strip().removesuffix(")"))
    return f"{head}: {sorted(part.strip() for part in parts)}"


def test_models_and_migrations_make_the_same_schema(tmp_path) -> None:
    migrated = open_sessions(f"sqlite:///{tmp_path}/migrated.sqlite3")
    migrate(migrated)
    modelled = open_sessions(f"sqlite:///{tmp_path}/modelled.sqlite3")
    Row.metadata.create_all(modelled.engine)
    assert statements(migrated) == statements(modelled)
    with migrated.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []


def test_migrations_go_forth_and_back(tmp_path) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path}/a b%20c.sqlite3")
    assert not at_head(sessions)
    migrate(sessions)
    migrate(sessions)
    assert at_head(sessions)
    from alembic import command

    from registry.db.migrate import configuration

    with sessions.writing_engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(create_engine(sessions.engine.url)).get_table_names() == ["alembic_version"]
    migrate(sessions)
    assert at_head(sessions)


def test_sqlite_keeps_references_and_lets_readers_read_while_one_writes(tmp_path) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path}/r.sqlite3")
    migrate(sessions)
    with sessions.reading() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
    with sessions.transaction() as writer, sessions.reading() as reader:
        writer.execute(text("INSERT INTO namespaces VALUES ('default', '2026-01-01')"))
        assert reader.scalar(text("SELECT count(*) FROM namespaces")) == 0
