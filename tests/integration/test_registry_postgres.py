"""The same behaviour on servers, where transactions really run beside each other: the races, and a whole flow.

A part of what `make test-servers` runs there. The servers come from wheels; where they do not start, these tests fail.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.schema import CreateIndex

from aot.schema.names import Namespace, Reference
from aot.schema.state import BlobState
from registry.db import blobs as blob_rows
from registry.db import held as held_rows
from registry.db import records as record_rows
from registry.db import tags as tag_rows
from registry.db.migrate import Standing, migrate
from registry.db.models import KernelRow, Row
from registry.db.retention import mark_used
from registry.db.session import open_sessions
from registry.deps import build_deps
from registry.services import holding, records
from registry.settings import Settings
from tests.builders import a_blob, a_manifest, a_profile, a_spec
from tests.integration.test_registry_builds import (  # noqa: F401
    test_a_cancelled_build_stops_its_worker_and_stays_cancelled,
    test_an_unknown_build_is_not_found,
    test_builds_are_listed_newest_first_page_by_page,
    test_eight_clients_that_submit_the_same_spec_end_in_one_build,
)
from tests.integration.test_registry_bundles import (  # noqa: F401
    V2,
    another,
    tag,
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
from tests.integration.test_registry_deleting import (  # noqa: F401
    loose,
    test_a_publish_does_not_count_on_bytes_that_were_removed_after_it_had_looked,
    test_a_sweeper_that_was_stopped_deletes_nothing_that_was_published_since,
    test_fsck_removes_nothing_that_was_mended_after_it_had_read,
    test_nor_where_it_has_lost_the_database_between_the_row_and_the_delete,
    test_of_two_sweepers_at_one_blob_the_second_waits_until_the_first_has_deleted_it,
)
from tests.integration.test_registry_flow import (  # noqa: F401
    test_a_submitted_spec_ends_as_a_signed_bundle_that_a_pod_can_fetch,
)
from tests.integration.test_registry_fsck import (  # noqa: F401
    test_a_crash_between_rows_and_bytes_lets_nobody_count_on_the_wrong_ones,
    test_a_pass_heals_a_bounded_number_and_the_next_one_goes_on,
    test_blobs_that_never_come_back_keep_nobody_from_his_turn,
    test_of_two_that_end_a_removal_the_second_changes_nothing,
    test_tags_and_bundles_are_read_page_by_page,
)
from tests.integration.test_registry_guards import (  # noqa: F401
    test_bundles_are_found_by_kind_and_value_of_their_guards,
    test_fsck_makes_the_index_whole,
    test_the_migration_indexes_what_was_published_before,
)
from tests.integration.test_registry_held import (  # noqa: F401
    test_held_blobs_are_found_by_their_own_index,
    test_nobody_holds_what_another_holds_or_deletes,
    test_of_two_at_one_blob_the_second_waits_until_the_first_is_done,
    test_what_a_killed_process_has_left_held_is_released_by_a_later_pass,
    test_what_somebody_still_works_on_is_not_released_however_long_that_takes,
    test_who_opens_the_upload_before_it_is_held_is_seen,
    test_whoever_opens_an_upload_of_a_held_blob_is_told_to_come_again,
)
from tests.integration.test_registry_kernels import (  # noqa: F401
    test_a_name_is_found_by_how_it_begins_letter_by_letter_and_in_order,
    test_a_target_finds_what_it_runs_and_says_what_that_is,
    test_kernels_are_narrowed_by_name_capability_bundle_and_blob,
    test_kernels_come_in_pages_the_newest_bundle_first,
    test_names_that_no_index_takes_whole_are_found_by_all_of_what_is_asked,
)
from tests.integration.test_registry_metrics import (  # noqa: F401
    test_a_scrape_reads_builds_and_bundles_by_indexes_of_what_lives,
    test_a_worker_that_died_is_not_counted_and_its_profile_says_when_it_was_seen,
)
from tests.integration.test_registry_push import (  # noqa: F401
    test_its_proof_goes_live_in_its_place,
    test_of_eight_that_push_the_same_code_one_brings_it,
)
from tests.integration.test_registry_queue import (  # noqa: F401
    test_a_failed_build_is_tried_again_as_a_new_one_that_says_of_which,
    test_a_lost_queue_costs_one_ticket_an_idle_worker_not_one_a_build,
    test_bulk_builds_wait_for_the_interactive_ones_of_all_namespaces_an_hour_at_most,
    test_every_waiting_build_is_explained_though_a_pass_looks_at_few,
    test_many_builds_that_cannot_be_built_do_not_hide_one_that_can,
    test_one_namespace_with_many_builds_does_not_keep_the_others_waiting,
    test_who_runs_fewer_builds_gets_the_next_worker,
)
from tests.integration.test_registry_reindex import (  # noqa: F401
    test_a_bundle_published_again_keeps_its_new_record,
    test_condemned_bytes_live_again_with_a_bundle_that_comes_back,
)
from tests.integration.test_registry_retention import (  # noqa: F401
    test_a_dry_run_only_reads_and_waits_for_no_writer,
    test_a_dry_run_says_what_would_go_and_changes_nothing,
    test_a_publish_beside_retention_keeps_its_bytes,
    test_a_use_by_digest_pins_as_a_lock_does,
    test_bytes_are_condemned_then_deleted_after_the_grace_period,
    test_condemned_bytes_live_again_when_they_are_wanted,
    test_of_a_tag_and_retention_that_meet_one_wins,
    test_two_sweepers_delete_each_blob_once,
    test_what_is_being_deleted_cannot_be_counted_on,
)
from tests.integration.test_registry_tags import (  # noqa: F401
    test_a_record_that_is_written_after_its_tag_was_removed_goes_too,
    test_a_tag_that_is_set_while_the_sweeper_holds_its_bundle_is_refused_or_keeps_it,
    test_of_a_removal_and_retention_that_meet_neither_takes_a_bundle_before_its_time,
    test_of_eight_that_remove_a_tag_one_does,
    test_tags_that_move_and_go_at_once_leave_nothing_without_its_time,
)
from tests.integration.test_registry_unproven import (  # noqa: F401
    test_a_bundle_that_a_worker_proves_now_is_left_alone,
    test_a_pushed_bundle_that_nobody_proves_is_rejected_with_its_build,
    test_of_several_sweepers_one_rejects_each,
)
from tests.service import Service, a_service
from tests.stack import Stack, a_database, standing_on

# An object store does not tell equal bytes of one second apart.
OF_DIRECTORIES = {"test_nor_where_it_has_lost_the_database_between_the_row_and_the_delete"}


@pytest.fixture(autouse=True)
def on_servers():
    with standing_on(Stack.SERVERS):
        yield


@pytest.fixture
def database_url():
    """Of an empty database."""
    with a_database() as url:
        yield url


@pytest.fixture
def service(request, tmp_path):
    blobs = {"AOT_BLOB_URL": "directory"} if request.node.originalname in OF_DIRECTORIES else {}
    with a_service(tmp_path, **blobs) as service:
        service.register(a_profile(), V2)
        yield service


@pytest.mark.parametrize("other", ["a move", "a removed record"])
def test_who_removes_a_tag_and_who_is_at_it_too_never_wait_for_each_other(service: Service, other: str) -> None:
    """Both take the tag first, then its bundle, and the note that its record is to go."""
    first, second = another(service, b"1"), another(service, b"2")
    deps, prod = service.deps, Reference("default/mini:prod")
    tag(service, "prod", first)
    service.clock.advance(1)

    def meet() -> object:
        if other == "a move":
            return tag(service, "prod", second, expected=first)
        return records.forget_due(deps)

    with ThreadPoolExecutor(1) as pool:
        with deps.sessions.transaction() as session:
            record_rows.begin_forgetting_tags(tag_rows.hold_tags(prod, session), now=service.clock(), session=session)
        with deps.sessions.transaction() as session:
            held = tag_rows.hold_tags(prod, session)
            going = pool.submit(meet)
            time.sleep(0.4)
            assert not going.done()
            mark_used([row.bundle for row in held], now=service.clock(), session=session)
            record_rows.begin_forgetting_tags(held, now=service.clock(), session=session)
        assert going.result(20)


@pytest.mark.parametrize("way", ["publish", "submit", "push"])
def test_who_moves_several_tags_and_who_removes_one_of_them_never_wait_for_each_other(
    service: Service, way: str
) -> None:
    """Both stand for one bundle: moving the first changes it, and whoever removes the second changes it, too."""
    deps, both = service.deps, ("latest", "prod")
    before, spec = another(service, b"before"), a_spec()
    for name in both:
        tag(service, name, before)
    service.clock.advance(1)
    build = service.submit(spec, tags=both if way == "publish" else ()).build
    claim = service.claim(spec.profile, build=build.id)
    if way != "publish":
        service.publish(claim)
    go = {
        "publish": lambda: service.publish(claim),
        "submit": lambda: service.submit(spec, tags=both),
        "push": lambda: service.push(a_manifest(spec), tags=both),
    }[way]
    with ThreadPoolExecutor(1) as pool:
        with deps.sessions.transaction() as session:
            held = tag_rows.hold_tags(Reference("default/mini:prod"), session)
            going = pool.submit(go)
            time.sleep(0.5)
            assert not going.done()
            mark_used([row.bundle for row in held], now=service.clock(), session=session)
        moved_to = going.result(20)
    view = service.call("get_bundle", digest=before)
    assert moved_to and view.tags == () and view.expires_at == service.clock() + deps.settings.keep


@pytest.mark.parametrize("content", [b"never seen before", b""], ids=["some bytes", "none"])
@pytest.mark.parametrize("moment", ["its view is there", "its view comes"])
def test_an_upload_that_is_opened_while_the_row_is_made_to_hold_its_place_stays(
    service: Service, monkeypatch: pytest.MonkeyPatch, moment: str, content: bytes
) -> None:
    """The client had looked before there was a row; the release comes while nothing of his is committed."""
    deps, blob, namespace = service.deps, a_blob(content), Namespace("default")
    with deps.sessions.transaction() as session:
        blob_rows.ensure_namespace(namespace, now=service.clock(), session=session)
    hold = partial(held_rows.hold, blob.digest, now=service.clock(), unless=lambda session: False)
    held, release = threading.Event(), threading.Event()

    def sweeper() -> None:
        with holding.held(blob.digest, hold, sessions=deps.sessions) as mine:
            assert mine is not None and mine.state is None
            held.set()
            assert release.wait(20)

    def meet() -> None:
        release.set()
        time.sleep(0.4)

    add = blob_rows.add_all_if_absent

    def add_and_meet(model: Any, *given: Any, **named: Any) -> None:
        add(model, *given, **named)
        if moment == "its view comes" and model is blob_rows.BlobRow:
            meet()

    monkeypatch.setattr(blob_rows, "add_all_if_absent", add_and_meet)
    with ThreadPoolExecutor(1) as pool:
        with deps.sessions.transaction() as session:
            assert blob_rows.hold_blobs((blob.digest,), session=session) == ()
            going = pool.submit(sweeper)
            assert held.wait(20)
            blob_rows.open_uploads((blob,), namespace=namespace, now=service.clock(), session=session)
            if moment == "its view is there":
                meet()
        going.result(20)
    with deps.sessions.reading() as session:
        row = session.get(blob_rows.BlobRow, blob.digest)
        assert row is not None and (row.state, row.size_bytes) == (BlobState.PENDING, len(content))
        page = {"opened_since": service.clock(), "start": blob.digest, "limit": 9}
        assert blob_rows.pending_blobs(session, **page, over_bytes=len(content) - 1) == (blob,)
    assert service.upload([blob]) == [blob.digest]


def test_models_and_migrations_make_the_same_schema_here_too(database_url: str) -> None:
    sessions = open_sessions(database_url)
    assert migrate(sessions).standing is Standing.SAME
    with sessions.engine.connect() as connection:
        # The collation of an expression is not in what Alembic compares: that index is compared whole, below.
        options = {"include_object": lambda _object, name, *_: name != "ix_kernels_head"}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Row.metadata) == []
        indexes = connection.execute(text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"))
        defined = dict(indexes.all())
    [modelled] = [index for index in KernelRow.__table__.indexes if index.name == "ix_kernels_head"]
    statement = str(CreateIndex(modelled).compile(sessions.engine)).replace(" (", " USING btree (", 1)
    sessions.close()
    assert defined["ix_kernels_head"].replace("public.", "").replace('"position"', "position") == statement
    assert 'COLLATE "C"' in statement
    assert "UNIQUE" in defined["uq_builds_live_key"] and "requalify IS NULL" in defined["uq_builds_live_key"]


def test_replicas_take_their_time_from_the_database_not_from_their_host(
    tmp_path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a host whose clock is an hour ahead: a lease that it gave would outlive its dead worker by an hour.
    monkeypatch.setattr("registry.clock.utc_now", lambda: datetime.now(UTC) + timedelta(hours=1))
    deps = build_deps(Settings.from_environ({"AOT_DATA_DIR": str(tmp_path), "AOT_DATABASE_URL": database_url}))
    assert abs(deps.clock() - datetime.now(UTC)) < timedelta(seconds=30)
    deps.sessions.close()
