"""The reads of a pod's start: what they find, and in how many statements."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from aot.schema.digest import Digest
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import TagRequest
from aot.schema.wire.workers import Scope
from registry.db import hot
from tests.builders import a_profile, a_spec
from tests.integration.test_registry_postgres import database_url, server  # noqa: F401
from tests.service import Service, a_service


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    url = request.getfixturevalue("database_url") if request.param == "postgresql" else None
    with a_service(tmp_path, database_url=url) as service:
        service.register(a_profile())
        yield service


@contextmanager
def statements(service: Service) -> Iterator[list[str]]:
    """What is asked of the database while the block runs."""
    sent: list[str] = []

    def note(*arguments: Any) -> None:
        if not arguments[2].startswith("BEGIN"):
            sent.append(arguments[2])

    engine = service.deps.sessions.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_a_pods_two_requests_are_two_statements_each(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    service.call("tag", TagRequest(bundle=bundle), namespace="default", name="mini", tag="latest")
    token = service.token(Scope.READ)
    with statements(service) as sent:
        found = service.call("resolve", token=token, namespace="default", name="mini", target="latest")
    assert [one.digest for one in found.bundles] == [bundle]
    assert ["FROM tokens" in sql for sql in sent] == [True, False]
    with statements(service) as sent:
        links = service.call("get_download_links", DownloadLinksRequest(), token=token, digest=bundle).links
    assert len(links) > 0
    assert ["FROM tokens" in sql for sql in sent] == [True, False]


def test_a_bundle_under_several_tags_names_them_all(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    for tag in ("b", "latest", "a"):
        service.call("tag", TagRequest(bundle=bundle), namespace="default", name="mini", tag=tag)
    with service.deps.sessions.reading() as session:
        [by_tag] = hot.resolve_tag("default", "mini", "a", session=session)  # type: ignore[arg-type]
        [by_digest] = hot.resolve_digests([bundle], session)
        pinned = hot.resolve_pinned("default", "mini", [Digest.of(b"none"), bundle], session=session)  # type: ignore[arg-type]
        assert hot.resolve_pinned("default", "other", [bundle], session=session) == ()  # type: ignore[arg-type]
        assert hot.resolve_digests([], session) == ()
        assert hot.blobs_of(Digest.of(b"none"), session) is None
    assert by_tag == by_digest == pinned[0] and len(pinned) == 1
    assert by_tag.tags == ("a", "b", "latest")
    assert Digest.of(by_tag.manifest) == bundle and by_tag.envelope is not None


def test_what_a_glance_reads_is_what_was_committed(service: Service) -> None:
    secret = service.token(Scope.READ)
    with service.deps.sessions.glancing() as session:
        assert hot.find_token("0" * 64, session) is None
    assert service.call("search", token=secret).bundles == ()
