"""Deletes of one version in an object store: what is put between the look and the delete stays."""

from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from aot.errors import AotError, InvalidConfig, StorageUnavailable
from registry.storage.s3 import S3BlobStore
from registry.storage.s3_versions import version_of
from tests.contract.test_blob_store import blob_of, read, upload

RIGHT, WRONG = b"the right bytes", b"the wrong bytes"


def put_after_the_look(store: S3BlobStore, key: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, when somebody has asked for the object's version and not yet acted on it."""
    head = store._client.head_object

    def looked(**asked: Any) -> Any:
        answer = head(**asked)
        monkeypatch.setattr(store._client, "head_object", head)
        store._client.put_object(Bucket=store._bucket, Key=key, Body=content)
        return answer

    monkeypatch.setattr(store._client, "head_object", looked)


def wrong_bytes(store: S3BlobStore) -> tuple[str, str]:
    """Key and version of what lies where the right bytes go."""
    blob = upload(store, RIGHT)
    key = store._key(blob.digest)
    store._client.put_object(Bucket=store._bucket, Key=key, Body=WRONG)
    version = store.version(blob.digest)
    assert version is not None
    return key, version


@pytest.mark.parametrize("named", ["s3_store", "strict_store"])
def test_other_bytes_that_are_put_between_look_and_delete_stay(
    named: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: S3BlobStore = request.getfixturevalue(named)
    key, version = wrong_bytes(store)
    put_after_the_look(store, key, RIGHT, monkeypatch)
    assert not store._versions.delete(key, version)
    assert read(store, blob_of(RIGHT)) == RIGHT


REFUSALS = [
    ("NotImplemented", 501),
    ("InvalidArgument", 400),
    ("BadRequest", 400),
    ("MethodNotAllowed", 405),
    ("PreconditionNotSupported", 409),
]


def refuse_conditions(store: S3BlobStore, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = store._client.delete_object

    def refused(**asked: Any) -> Any:
        if "IfMatch" in asked:
            raise error
        return delete(**asked)

    monkeypatch.setattr(store._client, "delete_object", refused)


def an_answer(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "DeleteObject")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [*(an_answer(*one) for one in REFUSALS), ParamValidationError(report="unknown parameter IfMatch")],
    ids=str,
)
def test_a_store_that_does_not_know_the_condition_deletes_by_the_look_alone(
    s3_store: S3BlobStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    key, version = wrong_bytes(s3_store)
    refuse_conditions(s3_store, error, monkeypatch)
    assert not s3_store._versions.delete(key, "another 1")
    assert s3_store._versions.delete(key, version)
    assert s3_store._versions.find(key) is None


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDenied", 403, InvalidConfig),
        ("ExpiredToken", 401, InvalidConfig),
        ("InternalError", 500, StorageUnavailable),
        ("ConditionalRequestConflict", 409, StorageUnavailable),
    ],
)
def test_what_refuses_the_delete_itself_or_passes_is_not_tried_without_the_condition(
    s3_store: S3BlobStore, monkeypatch: pytest.MonkeyPatch, code: str, status: int, kind: type[AotError]
) -> None:
    key, version = wrong_bytes(s3_store)
    refuse_conditions(s3_store, an_answer(code, status), monkeypatch)
    with pytest.raises(kind):
        s3_store._versions.delete(key, version)
    assert s3_store._versions.find(key) == version


def test_listings_and_answers_about_one_object_tell_one_version(
    s3_store: S3BlobStore, nanio_store: S3BlobStore, strict_store: S3BlobStore
) -> None:
    for store in (s3_store, nanio_store, strict_store):
        key, version = wrong_bytes(store)
        [listed] = store._client.list_objects_v2(Bucket=store._bucket, Prefix=key)["Contents"]
        got = store._client.get_object(Bucket=store._bucket, Key=key)
        assert {version_of(listed), version_of(got)} == {version}
