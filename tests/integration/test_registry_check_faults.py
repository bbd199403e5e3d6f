"""check: every probe says so where what it tries goes wrong. A store and a broker with one fault each."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kombu.transport import memory

from registry.clock import utc_now
from registry.services import check, check_broker, check_store
from registry.services.check import Finding, Verdict
from registry.settings import Settings
from registry.storage.directory import DirectoryBlobStore
from registry.storage.signing import LinkSigner


@dataclass
class Faulty:
    """An object store behind links, which misbehaves in the one way that its `fault` names."""

    fault: str = ""
    url: str = ""
    kept: dict[str, bytes] = field(default_factory=dict)
    deleted: list[Any] = field(default_factory=list)
    enforces_checksum: bool = True

    def stat(self, digest: Any) -> int | None:
        content = self.kept.get(f"/{digest.hex}")
        return None if content is None else len(content)

    def upload_link(self, blob: Any, *, expires_in: timedelta) -> Any:
        return self._link("PUT", blob)

    def download_link(self, blob: Any, *, expires_in: timedelta) -> Any:
        return self._link("GET", blob)

    def delete(self, digest: Any, *, version: str | None = None) -> bool:
        self.deleted.append(digest)
        return True

    @contextmanager
    def part_link(self, *, expires_in: timedelta) -> Iterator[str]:
        yield f"{self.url}/part?sig=1"

    def _link(self, method: str, blob: Any) -> Any:
        url = f"{self.url}/{blob.digest.hex}?sig=1"
        return check_store.Link(digest=blob.digest, size_bytes=blob.size_bytes, url=url, method=method)

    def answer(self, method: str, path: str, query: str, body: bytes, ranged: str | None) -> tuple[int, bytes]:
        if query != "sig=1" and self.fault != "signatures":
            return 403, b"SignatureDoesNotMatch"
        kind = "part" if path == "/part" else method
        if self.fault == f"{kind} 403":
            return 403, b"AccessDenied"
        if method == "PUT":
            if path in self.kept and self.fault != "create":
                return 412, b""
            self.kept[path] = body
            return 200, b""
        content = self.kept[path]
        if self.fault == "GET other":
            content = content[:-1] + bytes([content[-1] ^ 1])
        if ranged is None or self.fault == "Range":
            return 200, content
        first, last = (int(one) for one in ranged.removeprefix("bytes=").split("-"))
        return 206, content[first : last + 1]


@pytest.fixture
def store() -> Iterator[Faulty]:
    faulty = Faulty()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Silent."""

        def handle_any(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, answer = faulty.answer(self.command, path, query, body, self.headers.get("range"))
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = handle_any

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    faulty.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield faulty
    server.shutdown()
    server.server_close()


def found(store: Any) -> dict[str, Any]:
    steps = check_store.probe(store, clock=utc_now)
    return {step[0]: step[1] for step in steps if not isinstance(step, timedelta)}


RIGHT = {"PUT": True, "create if absent": True, "GET": True, "Range": True, "signatures": True, "part": True}


def test_a_store_without_a_fault_is_right(store: Faulty) -> None:
    assert found(store) == RIGHT
    assert [f"/{digest.hex}" for digest in store.deleted] == [path for path in store.kept if path != "/part"]


@pytest.mark.parametrize(
    ("fault", "name", "good"),
    [
        ("GET 403", "GET", False),
        ("GET other", "GET", False),
        ("part 403", "part", False),
        ("create", "create if absent", None),
        ("Range", "Range", False),
        ("signatures", "signatures", None),
    ],
)
def test_each_fault_is_found_by_its_probe(store: Faulty, fault: str, name: str, good: bool | None) -> None:
    store.fault = fault
    expected = {**RIGHT, name: good}
    if fault.startswith("GET"):
        expected |= {"Range": fault == "GET other"}
    assert found(store) == expected


def test_a_store_that_takes_nothing_is_asked_no_further(store: Faulty) -> None:
    store.fault = "PUT 403"
    assert found(store) == {"PUT": False, "part": True}


class Forgetful(DirectoryBlobStore):
    """As a directory on a disk that does not keep what is written."""

    def stat(self, digest: Any) -> int | None:
        return None


@pytest.mark.parametrize(("kind", "good"), [(DirectoryBlobStore, True), (Forgetful, False)])
def test_a_directory_that_keeps_nothing_is_found(tmp_path: Path, kind: type[DirectoryBlobStore], good: bool) -> None:
    store = kind(tmp_path / "blobs", LinkSigner(b"k" * 32, "http://127.0.0.1:9"))
    assert found(store) == {"directory": good, "links": None}


def through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Any, url: str = "memory://") -> dict[str, Finding]:
    """What is said of a broker into which messages are put so."""
    monkeypatch.setattr(check_broker, "WAIT_SECONDS", 0.3)
    if put is not None:
        monkeypatch.setattr(memory.Channel, "_put", put)
    settings = Settings.from_environ({"AOT_DATA_DIR": str(tmp_path), "AOT_BROKER_URL": url})
    return {finding.name: finding for finding in check._broker(settings, utc_now)}


def test_a_message_that_comes_back_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert through(tmp_path, monkeypatch, None)["broker"].verdict is Verdict.OK


def test_a_broker_that_drops_messages_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = through(tmp_path, monkeypatch, lambda *_, **__: None)["broker"]
    assert finding.verdict is Verdict.WRONG and "did not give it back" in finding.found


def test_a_broker_that_gives_back_another_message_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = memory.Channel._put

    def changed(self: Any, queue: str, message: dict[str, Any], **options: Any) -> None:
        put(self, queue, {**message, "body": "b3RoZXI=", "content-type": "text/plain"}, **options)  # "other"

    finding = through(tmp_path, monkeypatch, changed)["broker"]
    assert finding.verdict is Verdict.WRONG and "another message" in finding.found


@pytest.mark.parametrize(("seconds", "verdict"), [("1800", Verdict.OK), ("7200", Verdict.WEAK)])
def test_how_long_rabbitmq_leaves_a_message_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str, verdict: Verdict
) -> None:
    environ = {"AOT_DATA_DIR": str(tmp_path), "AOT_BROKER_URL": "amqp://host//", "AOT_ATTEMPT_SECONDS": seconds}
    name, good, found, hint = next(iter(check_broker.probe(Settings.from_environ(environ))))
    assert (name, check._verdict(good)) == ("broker visibility", verdict)
    assert "0:30:00" in found and (verdict is Verdict.OK or "consumer_timeout = 7200000" in hint)
