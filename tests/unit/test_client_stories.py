"""What a client sees of a registry that answers, lies, tires or is gone."""

from pathlib import Path

import pytest

from aot.cache import LocalCache
from aot.client import RegistryClient, RetryPolicy
from aot.errors import (
    BlobNotFound,
    BundleWithdrawn,
    DigestMismatch,
    InvalidConfig,
    InvalidSource,
    RateLimited,
    RegistryUnreachable,
    SizeMismatch,
    StorageUnavailable,
    TagNotFound,
    Unauthenticated,
)
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Namespace, Reference
from tests.builders import a_blob, a_file, a_manifest, a_source, a_spec, an_artifact
from tests.simulator import RegistrySimulator, a_reference

CONTENTS = (b"library " * 5000, b"constants" * 3000, b"kernel")


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    return LocalCache(tmp_path / "cache")


def a_bundle() -> Manifest:
    files = tuple(a_file(f"lib/{index}.so", content) for index, content in enumerate(CONTENTS))
    return a_manifest(artifacts=(an_artifact(files=files),))


def pull(client: RegistryClient, cache: LocalCache, reference: Reference) -> tuple[Path, ...]:
    """The two requests of a pod's start, without its verification and selection."""
    (signed,) = client.resolve(reference)
    manifest = decode_manifest(signed.manifest.encode())
    missing = cache.missing(manifest.blobs)
    links = client.get_download_links(signed.digest, [blob.digest for blob in missing]) if missing else ()
    return client.fetch_blobs(manifest.blobs, links, cache)


def read_all(paths: tuple[Path, ...]) -> set[bytes]:
    return {path.read_bytes() for path in paths}


def test_every_endpoint_has_a_method() -> None:
    assert [name for name in ENDPOINTS if not callable(getattr(RegistryClient, name, None))] == []


def test_a_bundle_is_resolved_and_fetched_with_two_requests(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    assert read_all(pull(simulator.client(), cache, a_reference())) == set(CONTENTS)
    assert [sent.method for sent in simulator.sent if not sent.path.startswith("/blobs/")] == ["GET", "POST"]


def test_what_the_cache_holds_is_not_asked_for(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    pull(simulator.client(), cache, a_reference())
    simulator.sent.clear()
    pull(simulator.client(), cache, a_reference())
    assert [sent.path for sent in simulator.sent] == ["/v1/models/default/mini/latest"]


def test_the_token_goes_to_the_registry_and_not_with_links(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    pull(simulator.client(), cache, a_reference())
    for sent in simulator.sent:
        assert ("authorization" in sent.headers) != sent.path.startswith("/blobs/")


def test_every_reply_is_closed(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    simulator.cut_after(10)
    simulator.refuse(StorageUnavailable("busy"))
    pull(simulator.client(), cache, a_reference())
    assert all(reply.closed for reply in simulator.replies)


def test_a_refusal_is_raised_as_the_class_that_the_registry_meant(simulator: RegistrySimulator) -> None:
    with pytest.raises(TagNotFound) as raised:
        simulator.client().resolve(a_reference(name="other"))
    assert raised.value.message == "there is no default/other:latest"
    with pytest.raises(Unauthenticated):
        simulator.client(token="guessed").resolve(a_reference())
    assert len(simulator.sent) == 2  # a refusal is not asked for again


def test_a_withdrawn_bundle_is_refused_with_its_reason(simulator: RegistrySimulator, cache: LocalCache) -> None:
    digest = simulator.add(a_bundle())
    simulator.withdraw(digest, reason="wrong results on batch 1")
    with pytest.raises(BundleWithdrawn) as raised:
        pull(simulator.client(), cache, a_reference())
    assert raised.value.details == {"reason": "wrong results on batch 1"}


def test_wrong_bytes_are_found_and_not_kept(simulator: RegistrySimulator, cache: LocalCache) -> None:
    manifest = a_bundle()
    simulator.add(manifest)
    digest = Digest.of(CONTENTS[0])
    simulator.contents[digest] = bytes(len(CONTENTS[0]))
    with pytest.raises(DigestMismatch):
        pull(simulator.client(), cache, a_reference())
    assert cache.path_of(digest) is None


@pytest.mark.parametrize("change", [-1, 1])
def test_a_blob_of_another_size_is_refused_before_it_is_read(
    simulator: RegistrySimulator, cache: LocalCache, change: int
) -> None:
    simulator.add(a_bundle())
    digest = Digest.of(CONTENTS[0])
    simulator.contents[digest] = bytes(len(CONTENTS[0]) + change)
    with pytest.raises(SizeMismatch):
        pull(simulator.client(), cache, a_reference())
    assert [reply.position for reply in simulator.replies if len(reply.body) == len(CONTENTS[0]) + change] == [0]


def test_a_cut_connection_is_resumed_where_it_ended(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    simulator.cut_after(5000, times=6)
    assert read_all(pull(simulator.client(), cache, a_reference())) == set(CONTENTS)
    resumed = [sent.headers["range"] for sent in simulator.sent if "range" in sent.headers]
    assert "bytes=5000-" in resumed and "bytes=10000-" in resumed
    assert sum(reply.position for reply in simulator.replies[2:]) == sum(map(len, CONTENTS))  # no byte twice


def test_a_store_without_ranges_begins_again(simulator: RegistrySimulator, cache: LocalCache) -> None:
    simulator.add(a_bundle())
    simulator.knows_ranges = False
    simulator.cut_after(9000, times=3)
    assert read_all(pull(simulator.client(), cache, a_reference())) == set(CONTENTS)


def test_a_line_that_is_always_cut_ends_in_an_error_and_no_file(
    simulator: RegistrySimulator, cache: LocalCache
) -> None:
    simulator.add(a_bundle())
    simulator.cut_after(0, times=100)
    with pytest.raises(RegistryUnreachable):
        pull(simulator.client(), cache, a_reference())
    assert not list((cache.root / "incoming").iterdir())


def test_what_is_unavailable_is_asked_for_again(simulator: RegistrySimulator) -> None:
    simulator.add(a_bundle())
    simulator.refuse(StorageUnavailable("the database restarts"), times=3)
    assert len(simulator.client().resolve(a_reference())) == 1
    assert len(simulator.sent) == 4


def test_patience_ends(simulator: RegistrySimulator) -> None:
    simulator.refuse(StorageUnavailable("the database is gone"), times=10)
    with pytest.raises(StorageUnavailable, match="the database is gone"):
        simulator.client().resolve(a_reference())
    assert len(simulator.sent) == 4


def test_a_registry_that_is_gone_is_named_after_the_last_attempt(simulator: RegistrySimulator) -> None:
    simulator.unreachable = True
    with pytest.raises(RegistryUnreachable):
        simulator.client().resolve(a_reference())
    assert len(simulator.sent) == 4


def test_a_rate_limit_is_waited_for(simulator: RegistrySimulator) -> None:
    simulator.add(a_bundle())
    waits: list[float] = []
    simulator.refuse(RateLimited("slow down", details={"retry_after_seconds": 7}))
    simulator.client(retry=RetryPolicy(sleep=waits.append)).resolve(a_reference())
    assert waits == [7.0]


def test_a_claim_whose_answer_may_be_lost_is_not_repeated(simulator: RegistrySimulator) -> None:
    simulator.refuse(StorageUnavailable("busy"), times=10)
    with pytest.raises(StorageUnavailable):
        simulator.client().claim(a_spec().name, profiles=(a_spec().profile,))
    assert len(simulator.sent) == 1
    simulator.unreachable = True  # here it cannot have arrived
    with pytest.raises(RegistryUnreachable):
        simulator.client().claim(a_spec().name, profiles=(a_spec().profile,))
    assert len(simulator.sent) == 5


def test_find_answers_for_every_spec_in_order(simulator: RegistrySimulator) -> None:
    manifest = a_bundle()
    digest = simulator.add(manifest)
    other = a_spec(source=a_source(b"another tree"))
    hit, miss = simulator.client().find([manifest.spec, other])
    assert hit.bundle is not None and hit.bundle.digest == digest
    assert miss.bundle is None and miss.build_key != hit.build_key


def test_a_blob_without_a_link_is_named(simulator: RegistrySimulator, cache: LocalCache) -> None:
    blob = a_blob(b"nowhere")
    with pytest.raises(BlobNotFound, match=blob.digest):
        simulator.client().fetch_blobs([blob], [], cache)


def test_only_what_is_missing_is_uploaded(simulator: RegistrySimulator, tmp_path: Path) -> None:
    blobs = [a_blob(content) for content in CONTENTS]
    simulator.contents[blobs[0].digest] = CONTENTS[0]
    files = {blob.digest: tmp_path / blob.digest.short for blob in blobs}
    for blob, content in zip(blobs, CONTENTS, strict=True):
        files[blob.digest].write_bytes(content)
    client = simulator.client()
    client.upload_blobs(client.open_uploads(Namespace("default"), blobs), files)
    assert simulator.contents == {blob.digest: content for blob, content in zip(blobs, CONTENTS, strict=True)}
    assert [sent.method for sent in simulator.sent] == ["POST", "PUT", "PUT"]


def test_a_file_that_changed_is_not_sent(simulator: RegistrySimulator, tmp_path: Path) -> None:
    client, blob = simulator.client(), a_blob(b"as it was")
    links = client.open_uploads(Namespace("default"), [blob])
    path = tmp_path / "file"
    path.write_bytes(b"as it was, and more")
    with pytest.raises(SizeMismatch):
        client.upload_blobs(links, {blob.digest: path})
    with pytest.raises(InvalidSource):
        client.upload_blobs(links, {blob.digest: tmp_path / "absent"})
    assert [sent.method for sent in simulator.sent] == ["POST"]


def test_a_token_with_a_line_end_is_refused_without_being_shown(simulator: RegistrySimulator) -> None:
    with pytest.raises(InvalidConfig) as raised:
        simulator.client(token="secret\n")
    assert "secret" not in str(raised.value)
