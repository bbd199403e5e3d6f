"""The reads of a pod's start: what they find, and in how many statements."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text

from aot.errors import BundleNotFound, BundleWithdrawn, StorageUnavailable, Unauthenticated
from aot.schema.digest import Digest
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.schema.wire.bundles import TagRequest, WithdrawRequest
from aot.schema.wire.workers import Scope
from registry.db import hot
from registry.db.models import ArtifactBlobRow, BlobRow, TokenRow
from registry.db.session import open_sessions
from registry.services import tokens
from registry.services.callers import REMEMBERED_SECONDS
from tests.builders import a_profile, a_spec
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.service import Service, a_service
from tests.statements import statements

LINKS = {"links": "true"}


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    url = request.getfixturevalue("database_url") if request.param == "postgresql" else None
    with a_service(tmp_path, database_url=url) as service:
        service.register(a_profile())
        yield service


def test_a_pods_two_requests_are_one_statement_each_and_one_for_its_token(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    service.call("tag", TagRequest(bundle=bundle), namespace="default", name="mini", tag="latest")
    token = service.token(Scope.READ)
    with statements(service) as sent:
        found = service.call("resolve", token=token, namespace="default", name="mini", target="latest")
    assert [one.digest for one in found.bundles] == [bundle]
    assert ["FROM tokens" in sql for sql, _ in sent] == [True, False]
    with statements(service) as sent:
        links = service.call("get_download_links", DownloadLinksRequest(), token=token, digest=bundle).links
    assert len(links) > 0
    assert ["FROM tokens" in sql for sql, _ in sent] == [False]


def test_a_cold_pods_request_is_one_statement_and_has_the_links_too(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    service.call("tag", TagRequest(bundle=bundle), namespace="default", name="mini", tag="latest")
    token = service.token(Scope.READ)
    asked = service.call("get_download_links", DownloadLinksRequest(), token=token, digest=bundle).links
    for target in ("latest", bundle):
        place = {"namespace": "default", "name": "mini", "target": target}
        with statements(service) as sent:
            found = service.call("resolve", token=token, query=LINKS, **place)
        assert ([one.digest for one in found.bundles], found.links, len(sent)) == ([bundle], asked, 1)
        assert service.call("resolve", token=token, query={"links": "false"}, **place).links == ()
        assert service.call("resolve", token=token, **place).links == ()


def a_bundle_of(service: Service, blobs: int, *, profile: str = "cpu-v3") -> Digest:
    """One under mini:latest that names so many blobs, the first of which all have, each of them for three files."""
    bundle = service.published(a_spec(profile=profile), tags=("latest",)).bundle
    with service.deps.sessions.transaction() as session:
        [file] = session.scalars(select(ArtifactBlobRow).where(ArtifactBlobRow.bundle == bundle).limit(1))
        kept = session.get_one(BlobRow, file.digest)
        digests = [file.digest, *(Digest.of(f"{profile} {number}".encode()) for number in range(1, blobs))]
        fields = {"size_bytes": file.size_bytes, "state": kept.state, "created_at": kept.created_at}
        session.add_all(BlobRow(digest=digest, **fields) for digest in digests[1:])
        session.flush()
        session.add_all(
            ArtifactBlobRow(
                bundle=bundle,
                position=1000 + position,
                artifact=file.artifact,
                path=f"file-{position}",
                digest=digest,
                size_bytes=file.size_bytes,
            )
            for position, digest in enumerate(3 * digests)
        )
    return bundle


def test_more_blobs_than_a_pod_may_need_are_not_linked_to(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob that several files are counts once."""
    bundle = a_bundle_of(service, 4)
    place = {"namespace": "default", "name": "mini", "target": bundle}
    for most, linked in ((4, 4), (3, 0)):
        monkeypatch.setattr("registry.api.bundles.MOST_LINKED", most)
        found = service.call("resolve", query=LINKS, **place)
        assert ([one.digest for one in found.bundles], len(found.links)) == ([bundle], linked)


def test_blobs_of_all_that_a_tag_stands_for_are_counted_each_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(a_profile(), a_profile("cpu-v2", capability="cpu:x86-64-v2"))
    bundles = [a_bundle_of(service, 3, profile="cpu-v2"), a_bundle_of(service, 4)]
    place = {"namespace": "default", "name": "mini"}
    for most, linked in ((6, 6), (5, 0)):
        monkeypatch.setattr("registry.api.bundles.MOST_LINKED", most)
        for target in ("latest", ",".join(bundles)):
            found = service.call("resolve", query=LINKS, target=target, **place)
            assert ([one.digest for one in found.bundles], len(found.links)) == (bundles, linked)


def test_thousands_of_blobs_are_not_read_to_find_that_they_are_too_many(service: Service) -> None:
    bundle = a_bundle_of(service, 10)
    with service.deps.sessions.glancing() as reader:
        listed = hot.blobs_of(bundle, reader)
        assert listed is not None and len(listed.blobs) == 10
        for most, read in ((2, 3), (9, 10), (10, 10), (64, 10), (0, 0)):
            [pinned] = hot.resolve_pinned("default", "mini", [bundle], most_blobs=most, reader=reader)  # type: ignore[arg-type]
            [tagged] = hot.resolve_tag("default", "mini", "latest", most_blobs=most, reader=reader)  # type: ignore[arg-type]
            assert len(pinned.blobs) == len(tagged.blobs) == read
            assert set(pinned.blobs) | set(tagged.blobs) <= set(listed.blobs)


def test_links_are_to_what_the_caller_may_read_alone(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    place = {"namespace": "default", "name": "mini", "target": bundle}
    stranger = service.token(Scope.READ, namespaces=["other"])
    with pytest.raises(BundleNotFound):
        service.call("resolve", token=stranger, query=LINKS, **place)
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=bundle)
    with pytest.raises(BundleWithdrawn):
        service.call("resolve", query=LINKS, **place)


@pytest.mark.parametrize("value", ["", "1", "TRUE", "yes"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(service: Service, value: str) -> None:
    headers = {"authorization": f"Bearer {service.admin}"}
    answer = service.http.get(f"/v1/models/default/mini/latest?links={value}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-input")
    assert "wanted links=true or links=false" in answer.json()["message"]


def test_a_removed_token_reads_for_five_seconds_more_and_does_nothing_else(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    token = service.token(Scope.ADMIN)

    def links() -> Any:
        return service.call("get_download_links", DownloadLinksRequest(), token=token, digest=bundle).links

    assert links()
    with service.deps.sessions.transaction() as session:
        session.execute(delete(TokenRow).where(TokenRow.hash == tokens.hash_of(token)))
    with pytest.raises(Unauthenticated):
        service.call("search", token=token)
    service.clock.advance(REMEMBERED_SECONDS - 0.1)
    assert links()
    service.clock.advance(0.1)
    with pytest.raises(Unauthenticated):
        links()


def test_a_remembered_token_still_expires_at_its_time(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    token = service.token(Scope.READ, seconds=2)
    place = {"namespace": "default", "name": "mini", "target": bundle}
    service.call("resolve", token=token, **place)
    service.clock.advance(2)
    with pytest.raises(Unauthenticated):
        service.call("resolve", token=token, **place)


def test_a_remembered_caller_gets_no_more_than_its_token_allows(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    token = service.token(Scope.READ, namespaces=["other"])
    for _ in range(2):  # looked up, then remembered
        with pytest.raises(BundleNotFound):
            service.call("get_download_links", DownloadLinksRequest(), token=token, digest=bundle)


@pytest.mark.parametrize("body", [b"", b"{", b'{"digests": 1}', b'{"wanted": []}'])
def test_a_body_that_is_not_one_is_refused_on_the_short_way_too(service: Service, body: bytes) -> None:
    headers = {"authorization": f"Bearer {service.admin}"}
    answer = service.http.post(f"/v1/bundles/{Digest.of(b'x')}/links", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["code"] in ("invalid-input", "malformed-document")


def test_the_short_way_refuses_a_body_over_the_limit(tmp_path: Path) -> None:
    with a_service(tmp_path, AOT_MAX_BODY_BYTES="1000") as service:
        headers = {"authorization": f"Bearer {service.admin}"}
        url = f"/v1/bundles/{Digest.of(b'x')}/links"
        answer = service.http.post(url, content=b" " * 1001, headers=headers)
        assert answer.status_code == 413
        assert service.http.post(url, content=b"{}".ljust(1000), headers=headers).status_code == 404


def test_a_bundle_under_several_tags_names_them_all(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    for tag in ("b", "latest", "a"):
        service.call("tag", TagRequest(bundle=bundle), namespace="default", name="mini", tag=tag)
    with service.deps.sessions.reading() as session:
        [by_tag] = hot.resolve_tag("default", "mini", "a", reader=session)  # type: ignore[arg-type]
        [by_digest] = hot.resolve_digests([bundle], session)
        pinned = hot.resolve_pinned("default", "mini", [Digest.of(b"none"), bundle], reader=session)  # type: ignore[arg-type]
        assert hot.resolve_pinned("default", "other", [bundle], reader=session) == ()  # type: ignore[arg-type]
        assert hot.resolve_digests([], session) == ()
        assert hot.blobs_of(Digest.of(b"none"), session) is None
    assert by_tag == by_digest == pinned[0] and len(pinned) == 1
    assert by_tag.tags == ("a", "b", "latest")
    assert Digest.of(by_tag.manifest) == bundle and by_tag.envelope is not None


def test_a_bundle_names_a_blob_of_two_files_once(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    with service.deps.sessions.transaction() as session:
        first = session.scalars(select(ArtifactBlobRow).where(ArtifactBlobRow.bundle == bundle)).first()
        assert first is not None
        copied = {column.name: getattr(first, column.name) for column in ArtifactBlobRow.__table__.columns}
        session.add(ArtifactBlobRow(**copied | {"position": 99}))
    with service.deps.sessions.glancing() as reader:
        listed = hot.blobs_of(bundle, reader)
    assert listed is not None
    digests = [blob.digest for blob in listed.blobs]
    assert first.digest in digests and digests == sorted(set(digests))
    assert {blob.digest: blob.size_bytes for blob in listed.blobs}[first.digest] == first.size_bytes


def test_a_glance_notices_a_lost_connection_when_it_was_quiet(database_url: str, monkeypatch: Any) -> None:  # noqa: F811
    sessions = open_sessions(database_url)
    ours = text("SELECT pg_backend_pid()")
    end = text("SELECT pg_terminate_backend(:pid, 5000)")

    def lose() -> None:
        with sessions.glancing() as glance:
            lost = glance.scalar(ours)
        with sessions.reading() as session:
            assert session.scalar(end, {"pid": lost})

    lose()
    with pytest.raises(StorageUnavailable), sessions.glancing() as glance:
        glance.scalar(ours)
    lose()
    monkeypatch.setattr("registry.db.session.QUIET_SECONDS", 0.0)
    with sessions.glancing() as glance:
        assert glance.scalar(ours)
    sessions.close()


def test_what_a_glance_reads_is_what_was_committed(service: Service) -> None:
    secret = service.token(Scope.READ)
    with service.deps.sessions.glancing() as reader:
        assert hot.find_token("0" * 64, reader) is None
    assert service.call("search", token=secret).bundles == ()
