"""What PostgreSQL rolls back for the sake of others is done again; what stays so is answered as to be sent again.

As in an upgrade, where versions that lock rows in different orders run side by side.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from aot.errors import StorageUnavailable
from aot.schema.codec import decode, encode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.names import Name
from aot.schema.wire.builds import CancelRequest, ClaimRequest, SubmitRequest
from aot.schema.wire.bundles import PublishRequest, PushRequest, TagRequest
from aot.schema.wire.errors import ErrorBody
from registry.db import retention as retention_rows
from registry.db.session import Sessions, tried_again
from registry.services import blobs
from registry.services.fsck import fsck
from registry.services.reindex import Reindexed, reindex
from registry.services.retention import retain
from tests.builders import a_manifest, a_profile, a_readable_artifact, a_spec, manifest_text
from tests.integration.test_registry_auth import BODIES
from tests.integration.test_registry_reindex import NOBODY
from tests.integration.test_registry_retention import DAY, a_bundle, file_of
from tests.integration.test_registry_tags import ONE
from tests.service import Service, a_service
from tests.stack import Stack, standing_on

DEADLOCK, NOT_SERIALIZED, ENDED = "40P01", "40001", "57P01"
READ = {"resolve", "get_download_links", "find", *(name for name, row in ENDPOINTS.items() if row.method == "GET")}
Place = dict[str, Any]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with standing_on(Stack.SERVERS), a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


@contextmanager
def rolled_back(monkeypatch: pytest.MonkeyPatch, *, times: int, code: str = DEADLOCK) -> Iterator[list[int]]:
    """Let the database end the next transactions, each when it has done everything; yields those that it ended."""
    ended: list[int] = []
    transaction = Sessions.transaction

    @contextmanager
    def unlucky(self: Sessions) -> Iterator[Session]:
        with transaction(self) as session:
            yield session
            if len(ended) < times:
                ended.append(len(ended))
                session.flush()
                session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'too bad' USING ERRCODE = '{code}'; END $$"))

    with monkeypatch.context() as patched:
        patched.setattr(Sessions, "transaction", unlucky)
        yield ended


# What each endpoint that writes is asked: its place (with `token`, where it is not the administrator's), and its body.


def of_an_attempt(service: Service) -> Place:
    claim = service.claim("cpu-v3", build=service.submit(a_spec()).build.id)
    return {"build": claim.build, "token": claim.token}


def of_one(service: Service) -> Place:
    a_bundle(service, "one", tags=("prod",))
    return ONE


def publishing(service: Service) -> tuple[Place, Any]:
    claim = service.claim("cpu-v3", build=service.submit(a_spec()).build.id)
    manifest = a_manifest(claim.spec, profile=claim.profile)
    service.upload(manifest.blobs, token=claim.token)
    return {"build": claim.build, "token": claim.token}, PublishRequest(manifest=manifest_text(manifest)[0])


def pushing(service: Service) -> tuple[Place, Any]:
    manifest = a_manifest(artifacts=(a_readable_artifact(),))
    service.upload((*manifest.spec.blobs, *manifest.blobs))
    return {}, PushRequest(manifest=manifest_text(manifest)[0])


def submitting(service: Service) -> tuple[Place, Any]:
    service.upload(a_spec().blobs)
    return {}, SubmitRequest(spec=a_spec())


def retrying(service: Service) -> tuple[Place, Any]:
    build = service.submit(a_spec()).build.id
    service.call("cancel", CancelRequest(reason="typo"), build=build)
    return {"build": build}, None


def claiming(service: Service) -> tuple[Place, Any]:
    service.submit(a_spec())
    return {}, ClaimRequest(worker=Name("worker-1"), profiles=(Name("cpu-v3"),))


ASKED: dict[str, Callable[[Service], tuple[Place, Any]]] = {
    "open_uploads": lambda service: ({}, None),
    "submit": submitting,
    "cancel": lambda service: ({"build": service.submit(a_spec()).build.id}, None),
    "retry": retrying,
    "claim": claiming,
    "renew": lambda service: (of_an_attempt(service), None),
    "report_progress": lambda service: (of_an_attempt(service), None),
    "fail": lambda service: (of_an_attempt(service), None),
    "release": lambda service: (of_an_attempt(service), None),
    "publish": publishing,
    "push": pushing,
    "tag": lambda service: (ONE, TagRequest(bundle=a_bundle(service, "one"))),
    "untag": lambda service: (of_one(service), None),
    "withdraw": lambda service: ({"digest": a_bundle(service)}, None),
    "register_worker": lambda service: ({}, None),
    "send_receipt": lambda service: ({}, None),
    "create_token": lambda service: ({}, None),
}


def test_every_endpoint_that_writes_is_among_them() -> None:
    assert ASKED.keys() == ENDPOINTS.keys() - READ


@pytest.mark.parametrize("endpoint", ASKED)
def test_a_request_is_done_again_once_then_it_is_to_be_sent_again(
    service: Service, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, body = ASKED[endpoint](service)
    row = ENDPOINTS[endpoint]
    content = encode(body or BODIES[row.request]) if row.request else None
    path = re.sub(r"{(\w+)}", lambda match: str(place[match[1]]), row.path)
    headers = {"authorization": f"Bearer {place.get('token', service.admin)}"}
    send = partial(service.http.request, row.method, path, content=content, headers=headers)
    with rolled_back(monkeypatch, times=99) as ended:
        answer = send()
    error = decode(answer.content, ErrorBody).to_error()
    assert (answer.status_code, answer.headers["retry-after"], ended) == (503, "2", [0, 1])
    assert isinstance(error, StorageUnavailable) and "too bad" not in str(error) and "others" in error.message
    with rolled_back(monkeypatch, times=1) as ended:
        answer = send()
    assert answer.status_code == (204 if row.reply is None else 200) and ended == [0], answer.text


@pytest.mark.parametrize(("code", "tries"), [(DEADLOCK, 3), (NOT_SERIALIZED, 3), (ENDED, 1)])
def test_what_the_database_ends_for_another_reason_is_not_done_again(
    service: Service, code: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was lost may have been lost after the commit."""

    def act() -> str:
        with service.deps.sessions.transaction():
            return "done"

    with rolled_back(monkeypatch, times=99, code=code) as ended, pytest.raises(StorageUnavailable):
        tried_again(act, tries=3)
    assert len(ended) == tries
    with rolled_back(monkeypatch, times=tries - 1, code=code):
        assert tried_again(act, tries=3) == "done"


def test_reindex_goes_on_by_itself(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = a_bundle(service, "one", tags=("prod",))
    with service.deps.sessions.transaction() as session:
        session.execute(text("DELETE FROM tags"))
        retention_rows.delete_bundles([bundle], session)
    with rolled_back(monkeypatch, times=4) as ended:
        done = reindex(service.deps, trusted=NOBODY)
    assert (done.bundles, done.tags, done.damaged, len(ended)) == ((bundle,), ("default/one:prod",), (), 4)
    with service.deps.sessions.transaction() as session:
        session.execute(text("DELETE FROM tags"))
    with rolled_back(monkeypatch, times=4):
        assert reindex(service.deps, trusted=NOBODY).tags == ("default/one:prod",)


def test_of_two_that_reindex_at_once_the_second_passes_over_what_the_first_has_added(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = a_bundle(service, "one")
    with service.deps.sessions.transaction() as session:
        retention_rows.delete_bundles([bundle], session)
    observe, first = blobs.observe, list[Reindexed]()

    def meanwhile(*given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        first.append(reindex(service.deps, trusted=NOBODY))
        return observe(*given, **named)

    monkeypatch.setattr(blobs, "observe", meanwhile)
    assert reindex(service.deps, trusted=NOBODY).bundles == () and first[0].bundles == (bundle,)


def test_retention_goes_on_by_itself(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = a_bundle(service, "one")
    service.clock.advance(91 * DAY)
    service.deps.uses.flush(service.deps.sessions)
    with rolled_back(monkeypatch, times=3) as ended:
        assert retain(service.deps).bundles == (bundle,)
    assert len(ended) == 3


def test_fsck_goes_on_by_itself(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = a_bundle(service, "one")
    file = file_of(service, bundle)
    service.overwrite(file, b"not one")
    with rolled_back(monkeypatch, times=3) as ended:
        checked = fsck(service.deps, trusted=NOBODY)
    assert (set(checked.damaged_blobs), set(checked.damaged_bundles), len(ended)) == ({file}, {bundle}, 3)


def test_a_step_of_the_sweeper_is_done_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = service.claim("cpu-v3", build=service.submit(a_spec()).build.id)
    service.clock.advance(service.deps.settings.lease.total_seconds() + 1)
    with rolled_back(monkeypatch, times=1):
        assert service.sweep().expired == (claim.build,)
