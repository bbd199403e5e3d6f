"""A blob that the registry holds or deletes at this moment is opened for upload once it does not: nobody gives up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.client import RegistryClient
from aot.errors import BlobPending, CompileStopped, InvalidSource
from aot.pipeline import pending
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob
from tests.service import Service, a_service
from tests.transport import client_of

DEFAULT = Namespace("default")
CONTENTS = (b"one", b"two", b"three")
BLOBS = tuple(Blob(digest=Digest.of(content), size_bytes=len(content)) for content in CONTENTS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "PENDING_PAUSE", 0.01)
    monkeypatch.setattr(pending, "STOP_PAUSE", 0.01)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        yield service


@pytest.fixture
def files(tmp_path: Path) -> dict[Digest, Path]:
    found = {}
    for blob, content in zip(BLOBS, CONTENTS, strict=True):
        found[blob.digest] = tmp_path / blob.digest.hex
        found[blob.digest].write_bytes(content)
    return found


def refuse(client: RegistryClient, monkeypatch: pytest.MonkeyPatch, name: str, *, times: int) -> list[Any]:
    """Let the call raise BlobPending so many times; returns what was asked."""
    act: Callable[..., Any] = getattr(client, name)
    asked: list[Any] = []

    def refusing(*given: Any, **named: Any) -> Any:
        asked.append(given)
        if len(asked) <= times:
            raise BlobPending("being moved to its place")
        return act(*given, **named)

    monkeypatch.setattr(client, name, refusing)
    return asked


@pytest.mark.parametrize("call", ["open_uploads", "upload_blobs"])
def test_an_upload_waits_while_a_blob_is_held(
    service: Service, files: dict[Digest, Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """`upload_blobs` too: it opens an upload again where its link has expired."""
    client = client_of(service)
    asked = refuse(client, monkeypatch, call, times=3)
    pending.upload(client, DEFAULT, BLOBS, files)
    assert len(asked) == 4
    assert [service.deps.store.stat(blob.digest) for blob in BLOBS] == [len(content) for content in CONTENTS]


def test_but_no_longer_than_it_may(
    service: Service, files: dict[Digest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PENDING_SECONDS", 0.05)
    client = client_of(service)
    refuse(client, monkeypatch, "open_uploads", times=1000)
    with pytest.raises(BlobPending):
        pending.upload(client, DEFAULT, BLOBS, files)
    with pytest.raises(CompileStopped, match="cancelled"):
        pending.upload(client, DEFAULT, BLOBS, files, should_stop=lambda: "cancelled")


class Passing:
    """In place of `time`: it passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({}, 1800),
        ({"size_bytes": 1 << 40}, 1800 + (1 << 16)),
        ({"size_bytes": 16 << 20}, 1801),
        ({"size_bytes": 1 << 60}, 86400),
        ({"size_bytes": 10**400}, 86400),
        ({"size_bytes": -(1 << 40)}, 1800),
        ({"size_bytes": "1099511627776"}, 1800),
        ({"size_bytes": None}, 1800),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_takes_long_to_hash_is_waited_for_longer_and_no_longer_than_a_day(
    told: dict[str, Any], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the registry says."""
    time = Passing()
    monkeypatch.setattr(pending, "time", time)
    monkeypatch.setattr(pending, "PENDING_PAUSE", 2.0)
    monkeypatch.setattr(pending, "STOP_PAUSE", 2.0)

    def send() -> str:
        raise BlobPending("it is still being hashed", details=told)

    with pytest.raises(BlobPending):
        pending.while_pending(send)
    assert seconds < time.now <= seconds + 4


def test_what_has_no_file_is_left_out_only_where_that_was_asked_for(
    service: Service, files: dict[Digest, Path]
) -> None:
    client, first = client_of(service), BLOBS[0].digest
    with pytest.raises(InvalidSource, match="there is no file"):
        pending.upload(client, DEFAULT, BLOBS, {first: files[first]})
    pending.upload(client, DEFAULT, BLOBS, {first: files[first]}, leave=True)
    assert service.deps.store.stat(first) == len(CONTENTS[0])
