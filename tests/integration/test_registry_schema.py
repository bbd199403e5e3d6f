"""The schema is what the migrations make, and the models say the same; on SQLite and on PostgreSQL."""

import re
from itertools import pairwise

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from aot.errors import StorageUnavailable
from registry.db.migrate import Standing, find_schema, known_revisions, migrate, standing_of
from registry.db.models import Row
from registry.db.session import Sessions, open_sessions
from tests.service import a_service


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


# The statements compare it.
@pytest.mark.filterwarnings("ignore:.*expression-based index")
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
    assert find_schema(sessions).standing is Standing.OLDER
    migrate(sessions)
    assert migrate(sessions).standing is Standing.SAME
    from alembic import command

    from registry.db.migrate import configuration

    with sessions.writing_engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(create_engine(sessions.engine.url)).get_table_names() == ["alembic_version"]
    assert migrate(sessions).standing is Standing.SAME


def test_a_database_that_goes_back_holds_no_blob_that_nobody_would_release(tmp_path) -> None:
    from alembic import command

    from registry.db.migrate import configuration

    sessions = open_sessions(f"sqlite:///{tmp_path}/r.sqlite3")
    migrate(sessions)
    states = [("held", "deleting", None), ("going", "deleting", "2026-01-02"), ("there", "stored", None)]
    with sessions.writing_engine.begin() as connection:
        for digest, state, condemned_at in states:
            connection.execute(
                text("INSERT INTO blobs VALUES (:digest, 1, :state, '2026-01-01', NULL, :condemned_at)"),
                {"digest": digest, "state": state, "condemned_at": condemned_at},
            )
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "0007")
        found = connection.execute(text("SELECT digest, state, condemned_at FROM blobs ORDER BY digest")).all()
    # Bytes may have been removed: the time says so to whoever saw the row before.
    assert found == [("going", "deleting", "2026-01-02"), ("held", "pending", "2026-01-01"), ("there", "stored", None)]


def test_sqlite_keeps_references_and_lets_readers_read_while_one_writes(tmp_path) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path}/r.sqlite3")
    migrate(sessions)
    with sessions.reading() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
    with sessions.transaction() as writer, sessions.reading() as reader:
        writer.execute(text("INSERT INTO namespaces VALUES ('default', '2026-01-01')"))
        assert reader.scalar(text("SELECT count(*) FROM namespaces")) == 0


def test_ids_of_migrations_are_numbers_that_count_up() -> None:
    ids = known_revisions()[::-1]
    assert ids[0] == "0001"
    assert all(re.fullmatch(r"\d{4}", one) for one in ids)
    for before, after in pairwise(ids):
        # The next one, or the first of the next thousand: what an older version uses was taken away.
        assert int(after) in (int(before) + 1, (int(before) // 1000 + 1) * 1000)


@pytest.mark.parametrize(
    ("found", "standing", "serves"),
    [
        (None, Standing.OLDER, False),
        ("0002", Standing.OLDER, False),
        ("0003", Standing.SAME, True),
        ("0004", Standing.NEWER, True),
        ("0999", Standing.NEWER, True),
        ("1000", Standing.OTHER, False),  # a later version took something away
        ("0003a", Standing.OTHER, False),
        ("8f3c2a", Standing.OTHER, False),
    ],
)
def test_a_database_that_was_only_added_to_is_served(found: str | None, standing: Standing, serves: bool) -> None:
    schema = standing_of(found, ("0003", "0002", "0001"))
    assert (schema.standing, schema.serves) == (standing, serves)
    assert (schema.hint == "") == serves


def left_at(sessions: Sessions, revision: str) -> None:
    """As another version's migrations leave it."""
    with sessions.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def test_migrating_what_a_newer_version_has_migrated_changes_nothing(tmp_path) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path}/r.sqlite3")
    migrate(sessions)
    left_at(sessions, "0998")
    assert migrate(sessions).standing is Standing.NEWER
    assert find_schema(sessions).found == "0998"
    left_at(sessions, "9999")
    with pytest.raises(StorageUnavailable, match="is at 9999") as refusal:
        migrate(sessions)
    assert "newer one" in refusal.value.hint


def test_replicas_stay_ready_while_a_newer_version_migrates_and_not_below_their_own(tmp_path) -> None:
    with a_service(tmp_path) as service:
        left_at(service.deps.sessions, "0998")
        checks = service.call("get_ready").checks
        assert checks["blobs"] == "ok"
        assert checks["database"].startswith("ok: it is at migration 0998 of a newer version")
        left_at(service.deps.sessions, "0001")
        with pytest.raises(StorageUnavailable) as refusal:
            service.call("get_ready")
        assert "python -m registry migrate" in refusal.value.details["checks"]["database"]
        left_at(service.deps.sessions, "9999")
        with pytest.raises(StorageUnavailable, match="cannot serve"):
            service.call("get_ready")
