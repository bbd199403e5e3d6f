"""Blobs too large for one request: put in parts, gone on with where they were interrupted, made whole, given up.

They come to a place of their namespace, and become blobs by a copy inside the store.
"""

import threading
import time
import urllib.error
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from aot.errors import BlobNotFound, BlobPending
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link, Part
from registry.services.blobs import observe, size_in
from registry.storage.parts import Incoming, comes_in_parts
from registry.storage.place import MIB, S3Place
from registry.storage.s3 import S3BlobStore, connect_s3
from registry.storage.s3_incoming import S3Incoming
from registry.storage.s3_versions import etag_of
from tests.contract.conftest import a_place, empty_bucket, s3_client
from tests.contract.test_blob_store import HOUR, Answer, blob_of, follow, read

PART = 5 * MIB
CONTENT = bytes(range(251)) * (11 * MIB // 251)  # two parts and a smaller one
BLOB = blob_of(CONTENT)
MINE, OTHERS = Namespace("mine"), Namespace("others")


ENDPOINTS = {"moto": "s3_endpoint", "nanio": "nanio_endpoint", "strict": "strict_endpoint"}


@pytest.fixture(params=ENDPOINTS)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Place:
    endpoint = request.getfixturevalue(ENDPOINTS[request.param])
    return a_place(endpoint, empty_bucket(endpoint, monkeypatch), largest_put_bytes=PART, part_bytes=PART)


@pytest.fixture
def store(place: S3Place) -> S3BlobStore:
    return connect_s3(place)


def put_part(link: Link, part: Part, body: bytes | None = None) -> Answer:
    """The answer; status 403 too where the server hangs up on a body that it does not want to read."""
    where = Link(digest=link.digest, size_bytes=part.size_bytes, url=part.url, method="PUT", headers=part.headers)
    try:
        return follow(where, CONTENT[part.start : part.start + part.size_bytes] if body is None else body)
    except urllib.error.URLError as error:
        assert isinstance(error.reason, (ConnectionResetError, BrokenPipeError)), error
        return Answer(403, b"", {})


def mine(store: S3BlobStore) -> S3Incoming:
    return store.incoming_of(MINE)


def put_all(incoming: Incoming, content: bytes = CONTENT) -> None:
    link = incoming.link(BLOB, expires_in=HOUR)
    for part in link.parts:
        assert put_part(link, part, content[part.start : part.start + part.size_bytes]).status == 200
    assert incoming.complete(BLOB) == len(CONTENT)


def opened(incoming: Incoming) -> tuple[bytes, str]:
    stream, version = incoming.open(BLOB.digest)
    with stream:
        return stream.read(), version


def remove(incoming: S3Incoming) -> None:
    """What has arrived, whatever it is; nothing where nothing has."""
    if (version := incoming.versions.find(incoming._key(BLOB.digest))) is not None:
        assert incoming.discard(BLOB.digest, version=version)


def adopted(incoming: Incoming) -> bool | None:
    return incoming.adopt(BLOB, version=opened(incoming)[1], seconds=60)


def starts(link: Link) -> list[int]:
    return [part.start for part in link.parts]


def test_a_blob_of_three_parts_becomes_one_object(store: S3BlobStore) -> None:
    link = mine(store).link(BLOB, expires_in=HOUR)
    assert (link.url, link.size_bytes, starts(link)) == ("", len(CONTENT), [0, PART, 2 * PART])
    for part in reversed(link.parts):  # the order is nobody's concern
        assert mine(store).complete(BLOB) is None
        assert store.stat(BLOB.digest) is None
        assert put_part(link, part).status == 200
    assert mine(store).complete(BLOB) == len(CONTENT)
    assert mine(store).complete(BLOB) == len(CONTENT)
    assert store.stat(BLOB.digest) is None, "it is no blob before it was hashed"
    assert adopted(mine(store))
    remove(mine(store))
    assert read(store, BLOB) == CONTENT
    assert list(store.arrivals()) == []
    got = follow(store.download_link(BLOB, expires_in=HOUR), range=f"bytes={PART - 5}-{PART + 4}")
    assert (got.status, got.body) == (206, CONTENT[PART - 5 : PART + 5])
    assert list(store.part_uploads()) == []


def test_nobody_waits_for_a_store_that_takes_long_to_join_the_parts(
    store: S3BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, joined, may_end = store._client.complete_multipart_upload, [], threading.Event()

    def slow(**upload: Any) -> Any:
        joined.append(upload["UploadId"])
        assert may_end.wait(20)
        return join(**upload)

    monkeypatch.setattr(store._client, "complete_multipart_upload", slow)
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 0.05)
    link = mine(store).link(BLOB, expires_in=HOUR)
    for part in link.parts:
        assert put_part(link, part).status == 200
    for _ in range(2):
        with pytest.raises(BlobPending, match="still joins the parts"):
            mine(store).complete(BLOB)
    may_end.set()
    monkeypatch.setattr("registry.storage.s3_parts.JOIN_SECONDS", 20.0)
    assert mine(store).complete(BLOB) == len(CONTENT)
    assert len(joined) == 1, "one attempt at a time"


def test_a_blob_up_to_the_limit_goes_in_one_request(store: S3BlobStore) -> None:
    small = Blob(digest=BLOB.digest, size_bytes=PART)
    link = mine(store).link(small, expires_in=HOUR)
    assert link.parts == () and link.url
    assert not comes_in_parts(small, store) and comes_in_parts(BLOB, store)


def test_an_interrupted_upload_lists_what_is_missing(store: S3BlobStore) -> None:
    link = mine(store).link(BLOB, expires_in=HOUR)
    put_part(link, link.parts[1])
    again = mine(store).link(BLOB, expires_in=HOUR)
    assert starts(again) == [0, 2 * PART]
    for part in again.parts:
        put_part(again, part)
    assert starts(mine(store).link(BLOB, expires_in=HOUR)) == [2 * PART], "it may be put again, which changes nothing"
    assert observe([BLOB], store, namespace=MINE).sizes == {BLOB.digest: len(CONTENT)}
    assert opened(mine(store))[0] == CONTENT


def test_a_part_of_another_size_does_not_count(store: S3BlobStore) -> None:
    link = mine(store).link(BLOB, expires_in=HOUR)
    put_part(link, link.parts[0], CONTENT[: PART - 1])  # refused, or stored and not counted
    for part in link.parts[1:]:
        put_part(link, part)
    assert mine(store).complete(BLOB) is None
    assert starts(mine(store).link(BLOB, expires_in=HOUR)) == [0]


def test_two_uploaders_go_on_with_one_upload(place: S3Place, store: S3BlobStore) -> None:
    other = connect_s3(place)
    links: list[Link] = []
    threads = [
        threading.Thread(target=lambda store=one: links.append(mine(store).link(BLOB, expires_in=HOUR)))
        for one in (store, other) * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = mine(store).link(BLOB, expires_in=HOUR)
    for part in final.parts:
        put_part(final, part)
    sizes: list[int | None] = []
    threads = [
        threading.Thread(target=lambda store=one: sizes.append(size_in(store, BLOB, namespace=MINE)))
        for one in (store, other) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [len(CONTENT)] * 4
    assert opened(mine(store))[0] == CONTENT


def test_completing_never_writes_over_a_stored_blob_whatever_conditions_the_store_ignores(store: S3BlobStore) -> None:
    link = mine(store).link(BLOB, expires_in=HOUR)
    for part in link.parts:
        put_part(link, part, bytes(part.size_bytes))
    theirs = store.incoming_of(OTHERS)
    put_all(theirs)
    assert adopted(theirs)  # meanwhile: hashed, and proven
    assert mine(store).complete(BLOB) == len(CONTENT)
    assert read(store, BLOB) == CONTENT
    assert observe([BLOB], store, namespace=MINE).sizes == {BLOB.digest: len(CONTENT)}
    assert {arrival.namespace for arrival in store.arrivals()} == {MINE, OTHERS}


def test_one_namespace_cannot_spoil_the_upload_of_another(store: S3BlobStore) -> None:
    first = mine(store).link(BLOB, expires_in=HOUR)
    put_part(first, first.parts[0])
    theirs = store.incoming_of(OTHERS)
    put_all(theirs, bytes(len(CONTENT)))
    assert starts(mine(store).link(BLOB, expires_in=HOUR)) == [PART, 2 * PART]
    put_all(mine(store))
    assert opened(mine(store))[0] == CONTENT
    assert opened(theirs)[0] == bytes(len(CONTENT))
    remove(theirs)
    remove(theirs)
    with pytest.raises(BlobNotFound):
        theirs.open(BLOB.digest)
    assert adopted(mine(store))
    assert read(store, BLOB) == CONTENT


def test_what_changed_after_it_was_hashed_is_not_adopted(store: S3BlobStore) -> None:
    put_all(mine(store), bytes(len(CONTENT)))
    _, version = opened(mine(store))
    remove(mine(store))
    assert mine(store).adopt(BLOB, version=version, seconds=60) is False
    put_all(mine(store))
    assert mine(store).adopt(BLOB, version=version, seconds=60) is False
    assert adopted(mine(store))
    assert read(store, BLOB) == CONTENT


def test_what_came_since_is_not_discarded_in_its_place(store: S3BlobStore) -> None:
    put_all(mine(store), bytes(len(CONTENT)))
    _, wrong = opened(mine(store))
    remove(mine(store))
    mine(store).discard(BLOB.digest, version=wrong)
    put_all(mine(store))
    mine(store).discard(BLOB.digest, version=wrong)
    content, version = opened(mine(store))
    assert content == CONTENT
    mine(store).discard(BLOB.digest, version=version)
    assert list(store.arrivals()) == []


@pytest.mark.parametrize("knows_conditions", [True, False])
def test_a_stream_that_is_taken_up_does_not_go_on_with_another_version(
    store: S3BlobStore, monkeypatch: pytest.MonkeyPatch, knows_conditions: bool
) -> None:
    put_all(mine(store))
    get = store._client.get_object

    class Cut:
        def read(self, size: int) -> bytes:
            raise ConnectionResetError("cut")

        def close(self) -> None: ...

    def cut(**parameters: Any) -> Any:
        return get(**parameters) | {"Body": Cut()}

    asked: list[str] = []

    def again(**parameters: Any) -> Any:
        asked.append(parameters["IfMatch"] if knows_conditions else parameters.pop("IfMatch"))
        return get(**parameters)

    monkeypatch.setattr(store._client, "get_object", cut)
    stream, version = mine(store).open(BLOB.digest)
    monkeypatch.setattr(store._client, "get_object", again)
    remove(mine(store))
    put_all(mine(store), bytes(len(CONTENT)))
    with stream, pytest.raises(BlobNotFound, match="another version"):
        stream.read()
    assert asked == [etag_of(version)]


@pytest.mark.parametrize("place", ["moto", "nanio"], indirect=True)
@pytest.mark.parametrize("knowing", [(), ("copy_object",), ("copy_object", "upload_part_copy")])
def test_whether_copies_are_bound_to_a_version_was_tried(
    place: S3Place, store: S3BlobStore, monkeypatch: pytest.MonkeyPatch, knowing: tuple[str, ...]
) -> None:
    assert not store.binds_copies, "neither imitation knows the condition"
    for name in knowing:
        monkeypatch.setattr(store._client, name, honouring(store, name))
    store.probe()
    assert store.binds_copies == (len(knowing) == 2)
    left = s3_client(place.endpoint or "").list_objects_v2(Bucket=place.bucket)
    assert (left.get("Contents", []), list(store._parts.begun(""))) == ([], [])


def honouring(store: S3BlobStore, name: str) -> Any:
    """The call, as a store answers it that compares the version of what it copies."""
    call, head = getattr(store._client, name), store._client.head_object

    def compared(**given: Any) -> Any:
        if head(**given["CopySource"])["ETag"] != given["CopySourceIfMatch"]:
            answer: Any = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
            raise ClientError(answer, name)
        return call(**given)

    return compared


def test_a_copy_in_parts_goes_on_where_its_time_ended(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = empty_bucket(s3_endpoint, monkeypatch)
    store = connect_s3(a_place(s3_endpoint, bucket, largest_put_bytes=PART, part_bytes=PART))
    put_all(mine(store))
    _, version = opened(mine(store))
    store._copies.largest_copy_bytes, store._copies.part_bytes = PART, PART
    monkeypatch.setattr("registry.storage.s3_copies.AT_ONCE", 2)
    copied: list[str] = []
    copy = store._client.upload_part_copy
    monkeypatch.setattr(
        store._client, "upload_part_copy", lambda **given: copied.append(given["CopySourceRange"]) or copy(**given)
    )
    assert mine(store).adopt(BLOB, version=version, seconds=-1) is None
    assert (len(copied), store.stat(BLOB.digest)) == (2, None)
    [begun] = store.part_uploads()
    assert (begun.digest, begun.namespace) == (BLOB.digest, None)
    assert mine(store).adopt(BLOB, version=version, seconds=-1) is True
    assert sorted(copied) == sorted(
        [f"bytes=0-{PART - 1}", f"bytes={PART}-{2 * PART - 1}", f"bytes={2 * PART}-{len(CONTENT) - 1}"]
    )
    assert read(store, BLOB) == CONTENT
    assert list(store.part_uploads()) == []


def test_a_large_blob_is_adopted_whatever_the_store_makes_of_copies_in_parts(store: S3BlobStore) -> None:
    put_all(mine(store))
    store._copies.largest_copy_bytes, store._copies.part_bytes = PART, PART
    assert adopted(mine(store))
    assert read(store, BLOB) == CONTENT
    assert all(upload.namespace is not None for upload in store.part_uploads()), "nothing is left of a copy"


def test_an_upload_that_is_given_up_is_gone_and_may_begin_again(store: S3BlobStore) -> None:
    first = mine(store).link(BLOB, expires_in=HOUR)
    put_part(first, first.parts[0])
    [begun] = store.part_uploads()
    assert begun.digest == BLOB.digest
    store.give_up(begun)
    store.give_up(begun)
    assert list(store.part_uploads()) == []
    assert put_part(first, first.parts[1]).status != 200
    assert mine(store).complete(BLOB) is None
    assert starts(mine(store).link(BLOB, expires_in=HOUR)) == [0, PART, 2 * PART]


def test_uploads_of_others_in_the_bucket_are_left_alone(place: S3Place, store: S3BlobStore) -> None:
    client = s3_client(place.endpoint or "")
    rest = f"sha256/ab/{'cd' * 31}"
    for key in (
        "elsewhere",
        "some/prefix/sha256/not-a-digest",
        "some/prefix2/sha256/ab/cd",
        f"some/prefix/incoming/Not A Name/{rest}",
        f"some/prefix/incoming/{rest}",
    ):
        client.create_multipart_upload(Bucket=place.bucket, Key=key)
    assert list(store.part_uploads()) == []


def test_a_link_to_a_part_binds_its_length_its_number_and_its_hour(request: pytest.FixtureRequest) -> None:
    endpoint = request.getfixturevalue("nanio_endpoint")
    bucket = empty_bucket(endpoint, request.getfixturevalue("monkeypatch"))
    store = connect_s3(a_place(endpoint, bucket, largest_put_bytes=PART, part_bytes=PART))
    link = mine(store).link(BLOB, expires_in=HOUR)
    assert put_part(link, link.parts[0], CONTENT[: PART + 1]).status == 403
    other = Part(start=0, size_bytes=PART, url=link.parts[0].url.replace("partNumber=1", "partNumber=2"))
    assert put_part(link, other).status == 403
    short = mine(store).link(BLOB, expires_in=timedelta(seconds=1))
    time.sleep(2.1)
    assert put_part(short, short.parts[0]).status == 403
    assert starts(mine(store).link(BLOB, expires_in=HOUR)) == [0, PART, 2 * PART]


@pytest.mark.parametrize(
    ("size", "part", "parts"),
    [(20 << 30, 64 * MIB, 320), (1 << 40, 1049 * MIB, 1000), (6 << 30, 64 * MIB, 96), ((5 << 30) + 1, 64 * MIB, 81)],
)
def test_a_large_blob_has_at_most_a_thousand_parts(size: int, part: int, parts: int) -> None:
    place = S3Place(bucket="b")
    assert place.part_bytes_of(size) == part
    assert -(-size // part) == parts <= 1000


def test_a_stream_that_breaks_is_taken_up_where_it_ended(store: S3BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link = mine(store).link(BLOB, expires_in=HOUR)
    for part in link.parts:
        put_part(link, part)
    mine(store).complete(BLOB)
    assert adopted(mine(store))
    begun: list[str] = []
    get = store._client.get_object

    class Cut:
        def __init__(self, body: Any) -> None:
            self._body, self._left = body, 3 * MIB

        def read(self, size: int) -> bytes:
            if not self._left:
                raise ConnectionResetError("cut")
            chunk = self._body.read(min(size, self._left))
            self._left -= len(chunk)
            return chunk

        def close(self) -> None:
            self._body.close()

    def cut(**parameters: Any) -> Any:
        begun.append(parameters.get("Range", ""))
        answer = get(**parameters)
        return answer | {"Body": Cut(answer["Body"])}

    monkeypatch.setattr(store._client, "get_object", cut)
    assert read(store, BLOB) == CONTENT
    assert begun == ["", f"bytes={3 * MIB}-", f"bytes={6 * MIB}-", f"bytes={9 * MIB}-"]
