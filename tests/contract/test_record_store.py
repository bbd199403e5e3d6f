"""What every record store does: memory, a directory, and an object store."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ResponseStreamingError
from urllib3.exceptions import SSLError

from aot.errors import StorageUnavailable
from registry.storage.records import DirectoryRecords, MemoryRecords, RecordStore
from registry.storage.s3 import S3BlobStore
from registry.storage.s3_records import READ_AGAIN


@pytest.fixture(params=["memory", "directory", "s3"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> RecordStore:
    match request.param:
        case "memory":
            return MemoryRecords()
        case "directory":
            return DirectoryRecords(tmp_path / "records")
    return request.getfixturevalue("s3_store").records()


def test_what_is_put_is_found_and_listed(records: RecordStore) -> None:
    assert records.find("bundles/ab/c.json") is None
    assert list(records.list("bundles/")) == []
    records.put("bundles/ab/c.json", b"one")
    records.put("bundles/de/f.json", b"two")
    records.put("tags/default/m/prod/p.json", b"three")
    assert records.find("bundles/ab/c.json") == b"one"
    assert sorted(records.list("bundles/")) == ["bundles/ab/c.json", "bundles/de/f.json"]
    assert list(records.list("tags/")) == ["tags/default/m/prod/p.json"]


def test_a_record_may_be_written_again(records: RecordStore) -> None:
    records.put("a/b", b"one")
    records.put("a/b", b"two")
    assert records.find("a/b") == b"two" and list(records.list("a/")) == ["a/b"]


def test_deleting_is_done_once_and_harmless_twice(records: RecordStore) -> None:
    records.put("a/b", b"one")
    records.delete("a/b")
    records.delete("a/b")
    assert records.find("a/b") is None and list(records.list("a/")) == []


def test_more_than_a_page_is_listed(records: RecordStore) -> None:
    names = sorted(f"a/{number:04d}" for number in range(1010))
    for name in names:
        records.put(name, b"x")
    assert sorted(records.list("a/")) == names


class Broken:
    """The body of an answer whose connection ends before its first byte."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self) -> bytes:
        raise self._error

    def close(self) -> None: ...


@pytest.mark.parametrize("breaks", [READ_AGAIN, READ_AGAIN + 1])
@pytest.mark.parametrize("error", [ResponseStreamingError(error="cut"), SSLError("bad record"), ConnectionResetError()])
def test_an_answer_that_breaks_off_is_asked_for_again(
    s3_store: S3BlobStore, monkeypatch: pytest.MonkeyPatch, breaks: int, error: Exception
) -> None:
    """boto3 repeats a request whose answer does not begin, and nothing once it has handed out the body."""
    records, get = s3_store.records(), s3_store._client.get_object
    records.put("a/b", b"one")
    broken = [Broken(error) for _ in range(breaks)]

    def cut(**parameters: Any) -> Any:
        answer = get(**parameters)
        return answer | {"Body": broken.pop()} if broken else answer

    monkeypatch.setattr(s3_store._client, "get_object", cut)
    if breaks > READ_AGAIN:
        with pytest.raises(StorageUnavailable, match="read the record a/b"):
            records.find("a/b")
    else:
        assert records.find("a/b") == b"one"
    assert not broken
