"""Two versions on one database: what the release before, which knows neither guards nor signed records, does to it."""

import msgspec
import pytest
from alembic import command
from sqlalchemy import text

from aot.schema.codec import encode
from aot.schema.guard import HostGuard
from aot.schema.manifest import decode_manifest
from aot.schema.wire.bundles import TagRequest
from aot.trust import TrustedKeys
from registry.db import records as record_rows
from registry.db.migrate import configuration
from registry.db.models import BundleRow, GuardRow
from registry.services import guards, records
from tests.builders import a_profile
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.integration.test_registry_reindex import TAG_OF_ONE
from tests.integration.test_registry_retention import a_bundle
from tests.integration.test_registry_tags import away
from tests.service import Service, a_service

# The statements of the release before, in its order.
DELETES = (
    "DELETE FROM kernels WHERE bundle = :bundle",
    "DELETE FROM artifact_blobs WHERE bundle = :bundle",
    "DELETE FROM artifacts WHERE bundle = :bundle",
    "DELETE FROM bundles WHERE digest = :bundle",
)


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def execute(service: Service, *statements: str, **values: object) -> None:
    with service.deps.sessions.transaction() as session:
        for statement in statements:
            session.execute(text(statement), values)


def guards_of(service: Service, bundle: str) -> list[tuple[str, str]]:
    with service.deps.sessions.reading() as session:
        return sorted((row.kind, row.value) for row in session.query(GuardRow).filter(GuardRow.bundle == bundle))


def delete_as_before(service: Service) -> None:
    bundle, other = a_bundle(service, "old"), a_bundle(service, "other")
    assert guards_of(service, bundle)
    execute(service, *DELETES, bundle=str(bundle))
    assert guards_of(service, bundle) == [] != guards_of(service, other)


def test_an_old_sweeper_can_delete_a_bundle_with_guards(service: Service) -> None:
    delete_as_before(service)


def test_on_postgresql_too(tmp_path, database_url: str) -> None:  # noqa: F811
    with a_service(tmp_path, database_url=database_url) as service:
        service.register(a_profile())
        delete_as_before(service)
        assert service.sweep().recorded == 0
        execute(service, "UPDATE bundles SET recorded_at = now()")
        assert service.sweep().recorded == 1


def test_what_an_old_sweeper_recorded_unsigned_is_signed(service: Service) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    assert service.sweep().recorded == 0
    keys = TrustedKeys.of(str(key.public) for key in service.deps.signing_keys)
    name, tag = records.bundle_name(bundle), "tags/default/one/prod/cpu-v3.json"
    # It withdraws or moves a tag (due again), then writes without a signature and says that it is done.
    service.deps.records.put(name, encode(records.read_bundle(service.deps.records.find(name), keys=keys)))
    service.deps.records.put(tag, encode(records.read_tag(service.deps.records.find(tag), keys=keys)))
    for table in ("bundles", "tags"):
        execute(service, f"UPDATE {table} SET recorded_at = NULL")
        execute(service, f"UPDATE {table} SET recorded_at = '2030-01-01 00:00:00.000000' WHERE recorded_at IS NULL")
    assert service.sweep().recorded == 2
    assert service.sweep().recorded == 0
    records.read_bundle(service.deps.records.find(name), keys=keys)
    records.read_tag(service.deps.records.find(tag), keys=keys)


def migrate_again(service: Service) -> None:
    for step, revision in ((command.downgrade, "0004"), (command.upgrade, "head")):
        with service.deps.sessions.writing_engine.begin() as connection:
            config = configuration()
            config.attributes["connection"] = connection
            step(config, revision)


def test_after_the_migration_every_record_is_due_for_the_new_version_alone(service: Service) -> None:
    a_bundle(service, "one", tags=("prod",))
    migrate_again(service)
    with service.deps.sessions.reading() as session:
        assert session.scalar(text("SELECT count(*) FROM bundles WHERE recorded_at IS NULL")) == 0
    assert service.sweep().recorded == 2
    assert service.sweep().recorded == 0


def test_guards_that_differ_in_a_nul_are_one_row(service: Service) -> None:
    """In the index of a publish, and in that of the migration: PostgreSQL takes no NUL, so it is replaced."""
    bundle = a_bundle(service, "one")
    odd = tuple(HostGuard(kind="option", value=value) for value in ("a\0b", "a\ufffdb"))
    with service.deps.sessions.transaction() as session:
        row = session.get(BundleRow, bundle)
        manifest = decode_manifest(row.manifest)
        first = msgspec.structs.replace(manifest.artifacts[0], host_guards=(*manifest.artifacts[0].host_guards, *odd))
        changed = msgspec.structs.replace(manifest, artifacts=(first, *manifest.artifacts[1:]))
        row.manifest = encode(changed)
    wanted = sorted((found.kind, found.value) for found in guards.rows_of(bundle, changed))
    assert [value for kind, value in wanted if kind == "option"] == ["a\ufffdb"]
    migrate_again(service)
    assert guards_of(service, bundle) == wanted


def test_a_record_that_was_written_after_its_bundle_expired_is_removed(service: Service) -> None:
    """One process reads the row, another removes bundle and record, then the first one's write arrives."""
    bundle = a_bundle(service, "one")
    name = records.bundle_name(bundle)
    execute(service, "UPDATE bundles SET recorded_at = NULL")
    with service.deps.sessions.reading() as session:
        [row] = record_rows.unrecorded_bundles(session, bundle=bundle, limit=1)
    execute(service, *DELETES, bundle=str(bundle))
    with service.deps.sessions.transaction() as session:
        record_rows.begin_forgetting([bundle], now=service.clock(), session=session)
        [due] = record_rows.forgotten_bundles(session, limit=1)
    records._write(row, service.deps)
    with service.deps.sessions.transaction() as session:
        record_rows.end_forgetting(bundle, due.note, session=session)  # who has removed the record that was before
    assert service.deps.records.find(name) is not None
    assert records.forget_due(service.deps) == 1
    assert service.deps.records.find(name) is None
    records._write(row, service.deps)  # also where nobody is at it any more
    assert records.forget_due(service.deps) == 1 and service.deps.records.find(name) is None


def test_what_an_old_registry_removes_once_more_is_removed_whatever_its_record_tells(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notes that with a note that tells no time, where a note that tells one may be left."""
    bundle = a_bundle(service, "one", tags=("prod",))
    where = {"namespace": "default", "name": "one", "tag": "prod"}
    with monkeypatch.context() as patched:
        patched.setattr(type(service.deps.records), "delete", away)
        service.call("untag", **where)
    service.clock.advance(60)
    service.call("tag", TagRequest(bundle=bundle), **where)
    assert service.deps.records.find(TAG_OF_ONE) is not None
    execute(service, "DELETE FROM tags", "UPDATE forgotten_tags SET note = :note", note="ab" * 16)
    assert records.forget_due(service.deps) == 1
    assert service.deps.records.find(TAG_OF_ONE) is None
