"""A store that compares what it is sent, as Amazon's and MinIO do: the registry hashes nothing itself then.

What every store does is in `test_blob_store.py`, uploads in parts in `test_parts.py`.
"""

import re
import threading

import pytest

from aot.schema.names import Namespace
from registry.storage.parts import incoming_for
from registry.storage.s3 import S3BlobStore, connect_s3
from tests.contract.conftest import a_place, empty_bucket, s3_client
from tests.contract.test_blob_store import CONTENT, HOUR, blob_of, follow, read, upload
from tests.contract.test_parts import BLOB, PART, mine, opened, put_all, remove
from tests.contract.test_parts import CONTENT as LARGE

BLOB_OF_CONTENT = blob_of(CONTENT)
WRONG = bytes(len(CONTENT))


def code_in(body: bytes) -> str:
    [code] = re.findall(rb"<Code>(\w+)</Code>", body)
    return code.decode()


def test_everything_is_found_to_be_enforced_and_the_probe_leaves_nothing(
    strict_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = empty_bucket(strict_endpoint, monkeypatch)
    store = connect_s3(a_place(strict_endpoint, bucket))
    assert (store.enforces_checksum, store.creates_if_absent, store.binds_copies) == (True, True, True)
    assert "Contents" not in s3_client(strict_endpoint).list_objects_v2(Bucket=bucket)
    assert list(store._parts.begun("")) == []


def test_a_blob_goes_to_its_place_at_once_and_only_a_larger_one_to_its_namespace(strict_store: S3BlobStore) -> None:
    assert incoming_for(BLOB_OF_CONTENT, strict_store, Namespace("mine")) is None
    strict_store.largest_put_bytes = len(CONTENT) - 1
    assert incoming_for(BLOB_OF_CONTENT, strict_store, Namespace("mine")) is not None


def test_wrong_bytes_are_refused_by_name_and_the_same_link_takes_the_right_ones(strict_store: S3BlobStore) -> None:
    link = strict_store.upload_link(BLOB_OF_CONTENT, expires_in=HOUR)
    answer = follow(link, WRONG)
    assert (answer.status, code_in(answer.body)) == (400, "BadDigest")
    assert strict_store.stat(BLOB_OF_CONTENT.digest) is None
    assert follow(link, CONTENT).status == 200
    assert read(strict_store, BLOB_OF_CONTENT) == CONTENT


@pytest.mark.parametrize("name", ["x-amz-checksum-sha256", "if-none-match"])
def test_what_a_link_binds_cannot_be_left_out(strict_store: S3BlobStore, name: str) -> None:
    upload(strict_store, CONTENT)
    link = strict_store.upload_link(BLOB_OF_CONTENT, expires_in=HOUR)
    del link.headers[name]
    assert follow(link, WRONG).status == 403
    assert read(strict_store, BLOB_OF_CONTENT) == CONTENT


def test_a_link_that_was_changed_tells_nobody_what_is_there(strict_store: S3BlobStore) -> None:
    upload(strict_store, CONTENT)
    link = strict_store.upload_link(BLOB_OF_CONTENT, expires_in=HOUR)
    forged = type(link)(
        digest=link.digest,
        size_bytes=link.size_bytes,
        url=re.sub(r"Signature=\w+", f"Signature={'0' * 64}", link.url),
        method="PUT",
        headers=link.headers,
    )
    assert follow(forged, CONTENT).status == 403


def test_of_eight_uploads_at_once_one_makes_the_blob(strict_store: S3BlobStore) -> None:
    link = strict_store.upload_link(BLOB_OF_CONTENT, expires_in=HOUR)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(follow(link, CONTENT).status)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [412] * 7
    assert read(strict_store, BLOB_OF_CONTENT) == CONTENT


def test_a_part_of_other_bytes_than_its_checksum_is_refused(strict_endpoint: str, strict_store: S3BlobStore) -> None:
    client, place = s3_client(strict_endpoint), {"Bucket": strict_store._bucket, "Key": "a-key"}
    upload_id = client.create_multipart_upload(**place)["UploadId"]
    wrong = strict_store.upload_link(BLOB_OF_CONTENT, expires_in=HOUR).headers["x-amz-checksum-sha256"]
    with pytest.raises(client.exceptions.ClientError, match="BadDigest"):
        client.upload_part(**place, UploadId=upload_id, PartNumber=1, Body=b"other", ChecksumSHA256=wrong)
    assert "Parts" not in client.list_parts(**place, UploadId=upload_id)


@pytest.mark.parametrize("copied_in_parts", [False, True])
def test_what_came_in_parts_is_copied_only_as_the_version_that_was_hashed(
    strict_endpoint: str, monkeypatch: pytest.MonkeyPatch, copied_in_parts: bool
) -> None:
    bucket = empty_bucket(strict_endpoint, monkeypatch)
    store = connect_s3(a_place(strict_endpoint, bucket, largest_put_bytes=PART, part_bytes=PART))
    if copied_in_parts:
        store._copies.largest_copy_bytes, store._copies.part_bytes = PART, PART
    put_all(mine(store))
    _, hashed = opened(mine(store))
    remove(mine(store))
    put_all(mine(store), bytes(len(LARGE)))
    assert mine(store).adopt(BLOB, version=hashed, seconds=60) is False
    assert store.stat(BLOB.digest) is None
    remove(mine(store))
    put_all(mine(store))
    _, again = opened(mine(store))
    assert mine(store).adopt(BLOB, version=again, seconds=60) is True
    assert read(store, BLOB) == LARGE
