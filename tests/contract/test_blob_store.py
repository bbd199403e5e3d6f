"""What every blob store does, whichever it is: the same list against memory, a directory and an object store.

Links are followed by urllib against real servers, as a client in another language would. The object stores are moto in
server mode, nanio, and nanio behind a strict front; `Subject` names what each leaves out. The first two do not refuse
bytes that have another SHA-256 than they were announced with: `enforces_checksum` says so, and the registry hashes by
itself then. The strict one does, as Amazon's and MinIO do.
"""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from aot.errors import BlobNotFound
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.storage.directory import DirectoryBlobStore
from registry.storage.memory import MemoryBlobStore
from registry.storage.protocol import BlobStore
from registry.storage.s3 import S3BlobStore
from registry.storage.signing import LinkSigner
from tests.serving import blob_app, listening, serving

HOUR = timedelta(hours=1)
CONTENT = bytes(range(256)) * 300
ABSENT = Digest.of(b"never uploaded")


@dataclass(frozen=True)
class Subject:
    """A store, and what its imitation on this machine leaves out. Known limits are listed, not hidden."""

    store: BlobStore
    checks_signatures: bool = True
    knows_every_range: bool = True  # from the end, and 416 for one outside


@pytest.fixture(params=["memory", "directory", "moto", "nanio", "strict"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "moto":
        yield Subject(request.getfixturevalue("s3_store"), checks_signatures=False)
        return
    if request.param in ("nanio", "strict"):
        yield Subject(request.getfixturevalue(f"{request.param}_store"), knows_every_range=False)
        return
    with listening() as (listener, url):
        signer = LinkSigner(b"s" * 32, url)
        store = MemoryBlobStore(signer) if request.param == "memory" else DirectoryBlobStore(tmp_path, signer)
        with serving(blob_app(store), listener):
            yield Subject(store)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]


def follow(link: Link, body: bytes | None = None, *, method: str | None = None, **headers: str) -> Answer:
    request = urllib.request.Request(link.url, data=body, method=method or link.method)
    for name, value in (link.headers | headers).items():
        request.add_header(name.replace("_", "-"), value)
    if body is not None:
        request.add_header("content-type", "application/octet-stream")
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return Answer(reply.status, reply.read(), {k.lower(): v for k, v in reply.headers.items()})
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read(), {k.lower(): v for k, v in error.headers.items()})


def blob_of(content: bytes) -> Blob:
    return Blob(digest=Digest.of(content), size_bytes=len(content))


def upload(store: BlobStore, content: bytes) -> Blob:
    blob = blob_of(content)
    assert follow(store.upload_link(blob, expires_in=HOUR), content).status in (200, 201)
    return blob


def read(store: BlobStore, blob: Blob) -> bytes:
    with store.open(blob.digest) as stream:
        return stream.read()


def test_an_absent_blob_has_no_size_and_cannot_be_opened(subject: Subject) -> None:
    assert subject.store.stat(ABSENT) is None
    with pytest.raises(BlobNotFound):
        subject.store.open(ABSENT)


def test_a_link_to_an_absent_blob_answers_404(subject: Subject) -> None:
    link = subject.store.download_link(Blob(digest=ABSENT, size_bytes=9), expires_in=HOUR)
    assert follow(link).status == 404


@pytest.mark.parametrize("content", [b"", b"x", CONTENT], ids=["empty", "one byte", "75 KiB"])
def test_what_was_put_is_what_is_got(subject: Subject, content: bytes) -> None:
    blob = upload(subject.store, content)
    answer = follow(subject.store.download_link(blob, expires_in=HOUR))
    assert (answer.status, answer.body) == (200, content)
    assert subject.store.stat(blob.digest) == len(content)
    assert read(subject.store, blob) == content


def test_a_stream_is_read_in_pieces(subject: Subject) -> None:
    blob = upload(subject.store, CONTENT)
    with subject.store.open(blob.digest) as stream:
        pieces = list(iter(lambda: stream.read(10_000), b""))
    assert len(pieces) > 1 and b"".join(pieces) == CONTENT


def test_putting_a_blob_again_changes_nothing(subject: Subject) -> None:
    blob = upload(subject.store, CONTENT)
    again = follow(subject.store.upload_link(blob, expires_in=HOUR), CONTENT)
    assert again.status in (200, 201, 412)
    assert read(subject.store, blob) == CONTENT


def test_other_bytes_of_the_same_size_are_refused_or_known_not_to_be(subject: Subject) -> None:
    blob = blob_of(CONTENT)
    wrong = bytes(len(CONTENT))
    answer = follow(subject.store.upload_link(blob, expires_in=HOUR), wrong)
    if subject.store.enforces_checksum:
        assert answer.status in (400, 422)
        assert subject.store.stat(blob.digest) is None
    else:
        # The registry reads `enforces_checksum` and hashes before it accepts; the wrong bytes are found there.
        assert answer.status == 200
        assert Digest.of(read(subject.store, blob)) != blob.digest


@pytest.mark.parametrize("change", [-1, 1], ids=["shorter", "longer"])
def test_bytes_of_another_size_are_not_taken_for_the_blob(subject: Subject, change: int) -> None:
    blob = blob_of(CONTENT)
    wrong = CONTENT[:change] if change < 0 else CONTENT + b"x"
    answer = follow(subject.store.upload_link(blob, expires_in=HOUR), wrong)
    if subject.store.enforces_checksum:
        assert answer.status in (400, 403, 422)
        assert subject.store.stat(blob.digest) is None
    else:
        assert subject.store.stat(blob.digest) != blob.size_bytes


def test_a_deleted_blob_is_absent_and_deleting_again_is_fine(subject: Subject) -> None:
    blob = upload(subject.store, CONTENT)
    subject.store.delete(blob.digest)
    subject.store.delete(blob.digest)
    assert subject.store.stat(blob.digest) is None


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=10-19", 10, 20), ("bytes=76000-", 76_000, 76_800), ("bytes=-7", 76_793, 76_800)],
)
def test_a_range_answers_with_that_part(subject: Subject, header: str, start: int, stop: int) -> None:
    if header == "bytes=-7" and not subject.knows_every_range:
        pytest.skip("known limit of the imitation: no ranges from the end, which no client of ours asks for")
    blob = upload(subject.store, CONTENT)
    answer = follow(subject.store.download_link(blob, expires_in=HOUR), range=header)
    assert (answer.status, answer.body) == (206, CONTENT[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"


def test_a_range_outside_the_blob_answers_416(subject: Subject) -> None:
    blob = upload(subject.store, CONTENT)
    wanted = 416 if subject.knows_every_range else 400
    answer = follow(subject.store.download_link(blob, expires_in=HOUR), range=f"bytes={len(CONTENT)}-")
    assert answer.status == wanted


def test_a_link_names_its_blob_and_method(subject: Subject) -> None:
    blob = blob_of(CONTENT)
    put = subject.store.upload_link(blob, expires_in=HOUR)
    got = subject.store.download_link(blob, expires_in=HOUR)
    assert (put.digest, put.size_bytes, put.method) == (blob.digest, blob.size_bytes, "PUT")
    assert (got.digest, got.size_bytes, got.method) == (blob.digest, blob.size_bytes, "GET")


def test_eight_uploads_at_once_end_in_one_blob(subject: Subject) -> None:
    blob = blob_of(CONTENT)
    statuses: list[int] = []

    def put() -> None:
        statuses.append(follow(subject.store.upload_link(blob, expires_in=HOUR), CONTENT).status)

    run_at_once([put] * 8)
    assert len(statuses) == 8 and set(statuses) <= {200, 201, 409, 412}
    assert read(subject.store, blob) == CONTENT


def test_an_expired_link_is_refused(subject: Subject) -> None:
    if not subject.checks_signatures:
        pytest.skip("known limit of the imitation: links do not expire")
    blob = upload(subject.store, CONTENT)
    got = subject.store.download_link(blob, expires_in=timedelta(seconds=1))
    put = subject.store.upload_link(blob, expires_in=timedelta(seconds=1))
    time.sleep(2.1)
    assert follow(got).status == 403
    assert follow(put, CONTENT).status == 403


@pytest.mark.parametrize("changed", ["signature", "blob", "expiry"])
def test_a_link_that_was_changed_is_refused(subject: Subject, changed: str) -> None:
    if not subject.checks_signatures:
        pytest.skip("known limit of the imitation: signatures are not checked")
    blob, other = upload(subject.store, CONTENT), upload(subject.store, b"another blob")
    link = subject.store.download_link(blob, expires_in=HOUR)
    assert follow(link).status == 200
    match changed:
        case "signature":
            url = re.sub(r"(sig|Signature)=[0-9a-f]{64}", lambda found: f"{found[1]}={'0' * 64}", link.url)
        case "blob":
            url = link.url.replace(blob.digest.hex[2:], other.digest.hex[2:]).replace(
                f"/{blob.digest.hex[:2]}/", f"/{other.digest.hex[:2]}/"
            )
            url = url.replace(f":{blob.digest.hex[:2]}", f":{other.digest.hex[:2]}")
        case _:
            url = re.sub(r"(expires|Expires)=(\d+)", lambda found: f"{found[1]}={int(found[2]) + 1}", link.url)
    assert url != link.url
    assert follow(Link(digest=link.digest, size_bytes=link.size_bytes, url=url)).status == 403


def test_an_upload_of_another_length_than_the_link_binds_is_refused(subject: Subject) -> None:
    if not subject.checks_signatures:
        pytest.skip("known limit of the imitation: signatures are not checked")
    blob = blob_of(CONTENT)
    assert follow(subject.store.upload_link(blob, expires_in=HOUR), CONTENT + b"x").status in (400, 403, 422)
    assert subject.store.stat(blob.digest) is None


def test_what_the_object_stores_enforce_was_tried(
    s3_store: S3BlobStore, nanio_store: S3BlobStore, strict_store: S3BlobStore
) -> None:
    assert (s3_store.enforces_checksum, s3_store.creates_if_absent) == (False, True)
    assert (nanio_store.enforces_checksum, nanio_store.creates_if_absent) == (False, False)
    assert (strict_store.enforces_checksum, strict_store.creates_if_absent) == (True, True)


def test_a_stored_blob_is_not_written_over_where_the_store_can_promise_it(subject: Subject) -> None:
    blob = upload(subject.store, CONTENT)
    wrong = bytes(len(CONTENT))
    answer = follow(subject.store.upload_link(blob, expires_in=HOUR), wrong)
    if isinstance(subject.store, S3BlobStore) and not subject.store.creates_if_absent:
        # Hashing finds it, and a client verifies what it gets: the registry knows that this store promises neither.
        assert not subject.store.enforces_checksum
        assert answer.status == 200
        return
    assert answer.status in (412, 422)
    assert read(subject.store, blob) == CONTENT


def test_a_link_to_read_does_not_write(subject: Subject) -> None:
    if not subject.checks_signatures:
        pytest.skip("known limit of the imitation: signatures are not checked")
    link = subject.store.download_link(blob_of(CONTENT), expires_in=HOUR)
    assert follow(link, CONTENT, method="PUT").status == 403
    assert subject.store.stat(link.digest) is None


def run_at_once(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_equal_bytes_that_were_put_twice_one_version_is_deleted(subject: Subject) -> None:
    store, blob = subject.store, upload(subject.store, b"put twice")
    first = store.version(blob.digest)
    assert first is not None and store.version(blob.digest) == first
    assert store.delete(blob.digest, version=first)
    assert (store.stat(blob.digest), store.version(blob.digest)) == (None, None)
    assert store.delete(blob.digest, version=first), "it is absent, as was asked for"
    if isinstance(store, S3BlobStore):
        time.sleep(1.1)  # these tell the time in seconds
    upload(store, b"put twice")
    assert store.version(blob.digest) != first
    assert not store.delete(blob.digest, version=first)
    assert read(store, blob) == b"put twice"
