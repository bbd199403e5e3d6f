"""A registry on an object store that compares what it is sent: it believes the store, and hashes no upload itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.errors import BlobMissing
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.state import BlobState, BundleState
from aot.schema.wire.blobs import DownloadLinksRequest, Link, OpenUploadsRequest
from aot.schema.wire.bundles import PublishRequest
from registry.db.models import BlobRow
from registry.services.hashing import Hashing
from registry.storage.s3 import S3BlobStore
from tests.builders import BYTES, a_manifest, a_profile, a_spec, manifest_text
from tests.service import Service, a_service
from tests.stack import Stack, standing_on
from tests.unit.test_queue import Consumer


@pytest.fixture(autouse=True)
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Digest]:
    """What the registry hashes."""
    seen: list[Digest] = []
    hash_ = Hashing.hash

    def noted(self: Hashing, key: Any, wanted: Digest, *rest: Any, **named: Any) -> Any:
        seen.append(wanted)
        return hash_(self, key, wanted, *rest, **named)

    monkeypatch.setattr(Hashing, "hash", noted)
    return seen


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with standing_on(Stack.SERVERS), a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def links_for(service: Service, blobs: tuple[Blob, ...], *, token: str | None = None) -> tuple[Link, ...]:
    request = OpenUploadsRequest(namespace=Namespace("default"), blobs=blobs)
    return service.call("open_uploads", request, token=token).links


def put(service: Service, link: Link, content: bytes) -> tuple[int, str]:
    """The status, and the code of a refusal."""
    answer = service.http.request(link.method, link.url, content=content, headers=link.headers)
    return answer.status_code, "".join(re.findall(r"<Code>(\w+)</Code>", answer.text))


def state_of(service: Service, blob: Blob) -> BlobState:
    with service.deps.sessions.reading() as session:
        return session.get(BlobRow, blob.digest).state


def test_the_whole_flow_hashes_nothing_and_no_sweeper_has_a_part_in_it(service: Service, hashed: list[Digest]) -> None:
    assert isinstance(service.deps.store, S3BlobStore) and service.deps.store.enforces_checksum
    build = service.submit(a_spec(), tags=("v1",)).build
    [(queue, ticket)] = service.queue.take()
    consumer = Consumer(service.deps.settings.broker_url, service.deps.settings.data_dir, queue=queue)
    while consumer.take()["ticket"] != ticket:  # those before are of other tests
        pass
    consumer.close()
    claim = service.claim("cpu-v3", build=build.id)
    reply = service.publish(claim)
    assert (reply.state, hashed) == (BundleState.LIVE, [])
    [bundle] = service.call("resolve", namespace="default", name="mini", target="v1").bundles
    links = service.call("get_download_links", DownloadLinksRequest(), digest=bundle.digest).links
    assert [service.http.get(link.url).content for link in links] == [BYTES[link.digest] for link in links]
    assert list(service.deps.store.arrivals()) == [], "every blob came to its place at once"
    assert service.sweep().hashed == 0


def test_wrong_bytes_are_refused_at_once_and_the_right_ones_publish(service: Service, hashed: list[Digest]) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    manifest = a_manifest(claim.spec, profile=claim.profile)
    request = PublishRequest(manifest=manifest_text(manifest)[0])
    links = links_for(service, manifest.blobs, token=claim.token)
    first, *others = links
    for link in others:
        assert put(service, link, BYTES[link.digest])[0] == 200
    wrong = BYTES[first.digest][::-1]
    assert put(service, first, wrong) == (400, "BadDigest")
    assert service.deps.store.stat(first.digest) is None
    with pytest.raises(BlobMissing, match=str(first.digest)):
        service.call("publish", request, token=claim.token, build=claim.build)
    assert put(service, first, BYTES[first.digest])[0] == 200
    assert service.call("publish", request, token=claim.token, build=claim.build).state is BundleState.LIVE
    assert hashed == []


def test_what_is_stored_is_not_written_over_by_whoever_has_a_link(service: Service, hashed: list[Digest]) -> None:
    [blob] = a_spec().blobs
    [late], [link] = links_for(service, (blob,)), links_for(service, (blob,))
    assert put(service, link, BYTES[blob.digest])[0] == 200
    assert put(service, late, BYTES[blob.digest]) == (412, "PreconditionFailed")
    assert put(service, late, BYTES[blob.digest][::-1]) == (412, "PreconditionFailed")
    bare = replace_headers(late, {name: value for name, value in late.headers.items() if name != "if-none-match"})
    assert put(service, bare, BYTES[blob.digest][::-1])[0] == 403
    service.submit(a_spec())
    assert links_for(service, (blob,)) == () and state_of(service, blob) is BlobState.STORED
    with service.deps.store.open(blob.digest) as stream:
        assert stream.read() == BYTES[blob.digest]
    assert hashed == []


def replace_headers(link: Link, headers: dict[str, str]) -> Link:
    return Link(digest=link.digest, size_bytes=link.size_bytes, url=link.url, method=link.method, headers=headers)
