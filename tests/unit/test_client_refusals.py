"""What the answer to a link means: ask for another link, try again, or give up; and whose answer it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.client import RetryPolicy
from aot.client.blobs import put_blob
from aot.client.refusals import blob_error_of, is_of_link
from aot.client.retry import ONCE
from aot.client.transfers import upload_blobs
from aot.errors import AotError, BlobMissing, DigestMismatch, Forbidden, RegistryError, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.wire.blobs import Link
from tests.simulator import SimulatedReply

CONTENT = b"bytes of a blob"
XML = {"content-type": "application/xml"}


def said(code: str, status: int = 400) -> SimulatedReply:
    return SimulatedReply(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(), XML)


def a_link(url: str = "http://store/first") -> Link:
    return Link(digest=Digest.of(CONTENT), size_bytes=len(CONTENT), url=url, method="PUT")


class Store:
    """Answers each PUT to a URL with the next of its replies."""

    def __init__(self, **replies: list[SimulatedReply]) -> None:
        self.replies = replies
        self.put: list[str] = []

    def send(self, method: str, url: str, *, headers: Mapping[str, str], body: Any = None, **_: Any) -> SimulatedReply:
        name = url.rpartition("/")[2]
        self.put.append(name)
        return self.replies[name].pop(0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ExpiredToken", Forbidden),
        ("InvalidToken", Forbidden),
        ("TokenRefreshRequired", Forbidden),
        ("IncompleteBody", StorageUnavailable),
        ("RequestTimeout", StorageUnavailable),
        ("BadDigest", DigestMismatch),
        ("NeverHeardOf", RegistryError),
    ],
)
def test_what_a_store_says_with_400_is_told_apart_by_its_code(code: str, kind: type[AotError]) -> None:
    reply = said(code)
    error = blob_error_of(reply, reply.body, wish="put it")
    assert (type(error), error.message) == (kind, f"put it was answered 400 {code}: no")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"])
def test_a_link_whose_session_has_ended_is_replaced_by_another(file: Path, code: str) -> None:
    store = Store(first=[said(code)], second=[SimulatedReply(200)])
    upload_blobs(
        store,
        [a_link()],
        {Digest.of(CONTENT): file},
        workers=1,
        timeout_seconds=1,
        retry=ONCE,
        renew=lambda link: a_link("http://store/second"),
    )
    assert store.put == ["first", "second"]


def test_a_body_that_arrived_in_part_is_sent_again_to_the_same_link(file: Path) -> None:
    store = Store(first=[said("IncompleteBody"), SimulatedReply(200)])
    retry = RetryPolicy(attempts=2, sleep=lambda _: None)
    put_blob(store, a_link(), file, timeout_seconds=1, retry=retry)
    assert store.put == ["first", "first"]


@pytest.mark.parametrize("reply", [said("AccessDenied", 403), said("NeverHeardOf")], ids=["403", "400"])
def test_a_refusal_is_known_as_the_links(file: Path, reply: SimulatedReply) -> None:
    with pytest.raises(RegistryError) as raised:
        put_blob(Store(first=[reply]), a_link(), file, timeout_seconds=1, retry=ONCE)
    assert is_of_link(raised.value)


@pytest.mark.parametrize("error", [Forbidden("no"), BlobMissing("not there"), StorageUnavailable("away")])
def test_what_the_registry_says_is_not(error: AotError) -> None:
    assert not is_of_link(error)
