"""Errors on their way out: total, the same class on the other side, and nothing of the inside."""

import json

import pytest
import structlog
from litestar import Litestar, get
from litestar.testing import TestClient

from aot.errors import (
    AotError,
    BlobMissing,
    InvalidConfig,
    InvalidInput,
    RateLimited,
    Unauthenticated,
    Unavailable,
    error_classes,
)
from aot.schema.codec import decode
from aot.schema.wire.errors import ErrorBody
from registry.api.errors import HANDLERS, STATUS, answer, status_of


@pytest.mark.parametrize("kind", list(error_classes()), ids=lambda kind: kind.code)
def test_every_error_has_a_status_and_comes_back_as_its_own_class(kind: type[AotError]) -> None:
    error = kind("wanted this, found that", hint="do so", details={"digests": ["a"], "depth": {"n": 1}})
    reply = answer(error)
    assert reply.status_code == status_of(kind) >= 400
    again = decode(reply.content, ErrorBody).to_error()
    assert type(again) is kind
    assert (again.message, again.hint, again.details) == (error.message, error.hint, error.details)


def test_what_is_retried_is_exactly_what_says_so() -> None:
    retried = {kind for kind in error_classes() if status_of(kind) in (429, 503)}
    assert retried == {kind for kind in error_classes() if issubclass(kind, Unavailable)}


def test_only_what_no_registry_raises_counts_as_its_fault() -> None:
    assert sorted({status for status in STATUS.values() if status >= 500}) == [500, 503]


def test_a_registry_whose_store_refuses_it_is_at_fault_and_not_its_caller() -> None:
    refused = answer(InvalidConfig("the object store refuses this registry", hint="check its rights"))
    assert refused.status_code == 500
    assert status_of(InvalidInput) == 400


def test_headers_say_what_to_do() -> None:
    assert answer(Unauthenticated("who")).headers["WWW-Authenticate"] == "Bearer"
    assert answer(RateLimited("slow", details={"retry_after_seconds": 7})).headers["Retry-After"] == "7"
    assert int(answer(Unavailable("later")).headers["Retry-After"]) > 0
    assert "Retry-After" not in answer(BlobMissing("put")).headers


@get("/bug", sync_to_thread=False)
def buggy() -> None:
    password = "hunter2"
    raise KeyError(f"/secret/path of {password}")


@get("/refuse", sync_to_thread=False)
def refuse() -> None:
    raise BlobMissing("3 blobs are missing")


@pytest.fixture
def http():
    application = Litestar([buggy, refuse], exception_handlers=HANDLERS)
    with TestClient(application, raise_server_exceptions=False) as http:
        yield http


def test_a_bug_tells_an_id_to_the_caller_and_the_rest_to_the_log(http) -> None:
    with structlog.testing.capture_logs() as logs:
        reply = http.get("/bug")
    assert reply.status_code == 500
    body = reply.json()
    assert "secret" not in reply.text and "hunter2" not in reply.text and "KeyError" not in reply.text
    [entry] = [entry for entry in logs if entry["event"] == "bug"]
    assert (entry["id"], entry["path"]) == (body["details"]["id"], "/bug")
    assert isinstance(entry["exc_info"], KeyError)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/refuse", 409, "blob-missing"),
        ("GET", "/nowhere", 404, "not-found"),
        ("POST", "/refuse", 405, "invalid-input"),
    ],
)
def test_every_refusal_has_the_one_shape(http, method: str, path: str, status: int, code: str) -> None:
    reply = http.request(method, path)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert set(json.loads(reply.content)) <= {"code", "message", "hint", "details"}
    assert reply.headers["content-type"] == "application/json"


def test_a_method_that_a_path_does_not_have_is_told_with_those_that_it_has(http) -> None:
    message = http.delete("/refuse").json()["message"]
    assert message == "wanted GET or OPTIONS of /refuse, found DELETE"
