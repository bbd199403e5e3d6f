"""Copies and streams of an S3 store that answers badly: what was done is kept, what takes too long goes in parts."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from aot.errors import StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.storage.place import MIB
from registry.storage.s3_answers import REOPENED, ResumedBody
from registry.storage.s3_copies import S3Copies

CONTENT = b"0123456789" * 4
BLOB = Blob(digest=Digest.of(CONTENT), size_bytes=7)


def refused(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "UploadPartCopy")


class Copying:
    """Notes what is copied; `answers` may refuse a part."""

    def __init__(self, answers: Callable[[int], None] = lambda number: None) -> None:
        self.answers = answers
        self.began = 0
        self.copied: list[str] = []

    def copy_object(self, **given: Any) -> None:
        self.copied.append("whole")

    def create_multipart_upload(self, **given: Any) -> dict[str, str]:
        self.began += 1
        return {"UploadId": f"upload-{self.began}"}

    def upload_part_copy(self, *, PartNumber: int, UploadId: str, CopySourceRange: str, **given: Any) -> Any:
        self.answers(PartNumber)
        self.copied.append(f"{UploadId} {CopySourceRange}")
        return {"CopyPartResult": {"ETag": str(PartNumber)}}

    def complete_multipart_upload(self, **given: Any) -> None:
        self.copied.append(f"{given['UploadId']} of {len(given['MultipartUpload']['Parts'])}")


def copy(copies: S3Copies, blob: Blob = BLOB) -> bool | None:
    return copies.copy(blob, "from", to="to", version='"v"', seconds=60)


@pytest.fixture
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.storage.s3_copies.AT_ONCE", 1)


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize("refusal", [refused("SlowDown", 503), refused("RequestTimeout", 400)], ids=str)
def test_a_copy_goes_on_after_a_part_was_throttled(refusal: ClientError) -> None:
    refusals = [refusal]

    def answers(number: int) -> None:
        if number == 3 and refusals:
            raise refusals.pop()

    client = Copying(answers)
    copies = S3Copies(client, "bucket", encryption={}, largest_copy_bytes=2, part_bytes=2)
    with pytest.raises(StorageUnavailable):
        copy(copies)
    assert copy(copies) is True
    ranges = ("0-1", "2-3", "4-5", "6-6")
    assert client.copied == [*(f"upload-1 bytes={one}" for one in ranges), "upload-1 of 4"]


@pytest.mark.usefixtures("one_at_once")
def test_a_copy_of_another_version_begins_again() -> None:
    refusals = [refused("PreconditionFailed", 412)]

    def answers(number: int) -> None:
        if number == 3 and refusals:
            raise refusals.pop()

    client = Copying(answers)
    copies = S3Copies(client, "bucket", encryption={}, largest_copy_bytes=2, part_bytes=2)
    assert copy(copies) is False
    assert copy(copies) is True
    assert client.copied[2:] == [*(f"upload-2 bytes={one}" for one in ("0-1", "2-3", "4-5", "6-6")), "upload-2 of 4"]


def test_one_request_copies_no_more_than_256_mib() -> None:
    client = Copying()
    copies = S3Copies(client, "bucket", encryption={})
    assert copy(copies, Blob(digest=BLOB.digest, size_bytes=256 * MIB)) is True
    assert client.copied == ["whole"]
    assert copy(copies, Blob(digest=BLOB.digest, size_bytes=256 * MIB + 1)) is True
    assert client.copied[-1] == "upload-1 of 2"


def test_a_copy_that_is_bound_is_never_made_without_its_condition() -> None:
    client = Copying()
    asked: list[dict[str, Any]] = []

    def refuse(**given: Any) -> None:
        asked.append(given)
        if "CopySourceIfMatch" in given:
            raise refused("InvalidRequest", 400)

    client.copy_object = refuse  # type: ignore[method-assign]
    copies = S3Copies(client, "bucket", encryption={})
    assert copy(copies) is True, "a store that does not know the header"
    copies.bound = True
    with pytest.raises(Exception, match="InvalidRequest"):
        copy(copies)
    assert len(asked) == 3


class Breaking(io.BytesIO):
    """Gives so many bytes, then breaks."""

    def __init__(self, content: bytes, gives: int) -> None:
        super().__init__(content)
        self.gives = gives

    def read(self, size: int | None = -1) -> bytes:
        if not self.gives:
            raise ConnectionResetError("cut")
        self.gives -= 1
        return super().read(1)


def test_a_stream_is_taken_up_as_often_as_it_breaks_while_bytes_come_between() -> None:
    def begin(position: int) -> tuple[Any, int]:
        return Breaking(CONTENT[position:], 1), len(CONTENT) - position

    assert len(CONTENT) > REOPENED + 1
    with io.BufferedReader(ResumedBody(begin, BLOB.digest)) as stream:
        assert stream.read() == CONTENT


def test_a_stream_that_breaks_without_a_byte_is_given_up() -> None:
    begun: list[int] = []

    def begin(position: int) -> tuple[Any, int]:
        begun.append(position)
        return Breaking(CONTENT[position:], 0 if begun[1:] else 5), len(CONTENT) - position

    with pytest.raises(StorageUnavailable), io.BufferedReader(ResumedBody(begin, BLOB.digest)) as stream:
        stream.read()
    assert begun == [0] + [5] * REOPENED


class WithoutParts(Copying):
    """A store that takes a copy of a part for a part without bytes."""

    def upload_part_copy(self, **given: Any) -> Any:
        super().upload_part_copy(**given)
        return {}

    def abort_multipart_upload(self, *, UploadId: str, **given: Any) -> None:
        self.copied.append(f"{UploadId} given up")


def test_a_store_that_copies_no_parts_copies_large_blobs_whole() -> None:
    client = WithoutParts()
    copies = S3Copies(client, "bucket", encryption={}, largest_copy_bytes=4, part_bytes=7)
    assert copy(copies) is True
    assert client.copied == ["upload-1 bytes=0-6", "upload-1 given up", "whole"]
    assert copy(copies) is True
    assert client.copied[3:] == ["whole"]


def test_a_store_that_copied_a_part_once_is_asked_for_parts_again() -> None:
    """Whole, what is larger than 5 GiB cannot be copied on S3; one answer without a word is no reason to try."""

    class Wordless(Copying):
        quiet = False

        def upload_part_copy(self, **given: Any) -> Any:
            answer = super().upload_part_copy(**given)
            return {} if self.quiet else answer

    client = Wordless()
    copies = S3Copies(client, "bucket", encryption={}, largest_copy_bytes=4, part_bytes=7)
    assert copy(copies) is True
    client.quiet = True
    assert copy(copies) is None
    client.quiet = False
    assert copy(copies) is True
    assert "whole" not in client.copied
