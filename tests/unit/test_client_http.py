"""The transport against real sockets: kept connections, cut ones, early refusals, certificates."""

import io
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aot.client import HttpTransport, RegistryClient, RetryPolicy
from aot.client.blobs import get_blob, put_blob
from aot.client.retry import ONCE
from aot.errors import Forbidden, InvalidConfig, NotARegistry, RegistryError, RegistryUnreachable
from aot.schema.digest import Digest
from aot.schema.wire.blobs import Link
from aot.schema.wire.workers import HealthReply
from tests.certificates import certificate

BODY = b'{"status":"ok","version":"1.0"}'
HEALTH = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n" + BODY
HANG_UP = b""
Script = Callable[[socket.socket], None]


class Server:
    """Hands each connection to the next of its scripts: a function, or the answers to one request after another."""

    def __init__(self, *scripts: tuple[bytes, ...] | Script, context: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.connections = 0
        self._scripts = scripts
        self._context = context
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                connection, _ = self.listener.accept()
                if self._context:
                    connection = self._context.wrap_socket(connection, server_side=True)
            except OSError:
                continue
            self.connections += 1
            with connection:
                self._answer(connection, script) if isinstance(script, tuple) else script(connection)

    def _answer(self, connection: socket.socket, answers: tuple[bytes, ...]) -> None:
        for answer in answers:
            self.requests.append(read_head(connection))
            connection.sendall(answer)


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n") and (byte := connection.recv(1)):
        head += byte
    return head


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*scripts: tuple[bytes, ...] | Script, context: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(*scripts, context=context))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


def a_client(server: Server, *, retry: RetryPolicy = ONCE, **options: float) -> RegistryClient:
    return RegistryClient(HttpTransport(), server.url, "a-secret", retry=retry, **options)


def test_requests_share_a_connection(serve: Callable[..., Server]) -> None:
    server = serve((HEALTH, HEALTH, HEALTH))
    client = a_client(server)
    assert [client.get_health() for _ in range(3)] == [HealthReply(status="ok", version="1.0")] * 3
    assert server.connections == 1
    assert b"authorization: Bearer a-secret" in server.requests[2]


def test_threads_do_not_share_a_connection(serve: Callable[..., Server]) -> None:
    both = threading.Barrier(2)

    def together(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(HEALTH)

    def slow(connection: socket.socket) -> None:
        threading.Thread(target=together, args=(connection.dup(),), daemon=True).start()

    server = serve(slow, slow)
    client = a_client(server)
    replies: list[HealthReply] = []

    def call() -> None:
        both.wait(10)
        replies.append(client.get_health())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(replies) == 2


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(serve: Callable[..., Server]) -> None:
    server = serve((HEALTH,), (HEALTH,))
    client = a_client(server)
    client.get_health()
    time.sleep(0.1)  # the server hangs up after its one answer
    client.get_health()
    assert server.connections == 2


def test_a_body_that_ends_early_is_not_taken_for_whole(serve: Callable[..., Server]) -> None:
    server = serve((HEALTH[:-5],))
    with pytest.raises(RegistryUnreachable, match="5 bytes early"):
        a_client(server).get_health()


LARGE = os.urandom(3_000_000)
LARGE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n"


def read_in_pieces(transport: HttpTransport, url: str, *, size: int, timeout_seconds: float = 5.0) -> bytes:
    reply = transport.send("GET", url, headers={}, timeout_seconds=timeout_seconds)
    pieces = []
    try:
        while piece := reply.read(size):
            assert len(piece) <= size
            pieces.append(piece)
    finally:
        reply.close()
    return b"".join(pieces)


@pytest.mark.parametrize("size", [1000, 8192, 100_000, 1 << 18, 10_000_000])
def test_a_large_body_arrives_whole_and_its_connection_is_used_again(serve: Callable[..., Server], size: int) -> None:
    server = serve((LARGE_HEAD + LARGE, LARGE_HEAD + LARGE, HEALTH))
    transport = HttpTransport()
    assert [read_in_pieces(transport, server.url, size=size) == LARGE for _ in range(2)] == [True, True]
    assert read_in_pieces(transport, server.url, size=size) == BODY
    assert server.connections == 1


def test_a_large_body_that_ends_early_is_not_taken_for_whole(serve: Callable[..., Server]) -> None:
    server = serve((LARGE_HEAD + LARGE[:2_000_000],))
    with pytest.raises(RegistryUnreachable, match="1000000 bytes early"):
        read_in_pieces(HttpTransport(), server.url, size=1 << 18)


def test_a_large_body_that_stands_still_is_given_up(serve: Callable[..., Server]) -> None:
    done = threading.Event()

    def stand_still(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(LARGE_HEAD + LARGE[:2_000_000])
        done.wait(10)

    server = serve(stand_still)
    begun = time.monotonic()
    with pytest.raises(RegistryUnreachable, match="timed out"):
        read_in_pieces(HttpTransport(), server.url, size=1 << 18, timeout_seconds=0.3)
    done.set()
    assert time.monotonic() - begun < 5


def test_a_slow_line_is_not_a_silent_one(serve: Callable[..., Server]) -> None:
    def drip(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(LARGE_HEAD)
        for start in range(0, 3_000_000, 500_000):
            connection.sendall(LARGE[start : start + 500_000])
            time.sleep(0.15)

    # In all it takes longer than the timeout, which bounds each wait.
    assert read_in_pieces(HttpTransport(), serve(drip).url, size=4_000_000, timeout_seconds=0.6) == LARGE


def test_a_server_that_hangs_up_or_talks_nonsense_is_unreachable(serve: Callable[..., Server]) -> None:
    for answer in (HANG_UP, b"SSH-2.0-OpenSSH\r\n"):
        with pytest.raises(RegistryUnreachable) as raised:
            a_client(serve((answer,))).get_health()
        assert raised.value.details == {"sent": True}


def test_a_silent_server_is_given_up(serve: Callable[..., Server]) -> None:
    server = serve(lambda connection: time.sleep(2))
    begun = time.monotonic()
    with pytest.raises(RegistryUnreachable, match="timed out"):
        a_client(server, timeout_seconds=0.2).get_health()
    assert time.monotonic() - begun < 1.5


def test_nobody_listening_is_known_not_to_have_arrived() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RegistryUnreachable) as raised:
        RegistryClient(HttpTransport(), f"http://127.0.0.1:{port}", None, retry=ONCE).get_health()
    assert raised.value.details == {"sent": False}
    assert "Connection refused" in raised.value.message and raised.value.hint


@pytest.mark.parametrize("url", ["registry", "ftp://registry", "http://", "http://[", "http://a b", "http://x:99999"])
def test_an_address_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(InvalidConfig, match="address"):
        RegistryClient(HttpTransport(), url, None, retry=ONCE).get_health()


def test_a_load_balancer_without_registry_is_asked_again(serve: Callable[..., Server]) -> None:
    page = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"
    server = serve((page, HEALTH))
    client = a_client(server, retry=RetryPolicy(sleep=lambda _: None))
    assert client.get_health().status == "ok"


def test_something_else_at_this_address_is_named(serve: Callable[..., Server]) -> None:
    page = b"HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"
    with pytest.raises(NotARegistry, match="answered 404 with text/html") as raised:
        a_client(serve((page,))).get_health()
    assert "AOT_URL" in raised.value.hint


@pytest.mark.parametrize("kind", [b"text/html; charset=utf-8", b"text/plain"])
def test_a_page_that_is_answered_200_is_no_registrys(serve: Callable[..., Server], kind: bytes) -> None:
    page = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\ncontent-length: 6\r\n\r\n<html>"
    with pytest.raises(NotARegistry, match="answered 200 with text/") as raised:
        a_client(serve((page,))).get_health()
    assert "AOT_URL" in raised.value.hint
    with pytest.raises(NotARegistry):  # nor has it taken what is answered with nothing
        a_client(serve((page,))).release("b1", reason="none")


def test_json_is_known_by_its_type_however_that_is_written(serve: Callable[..., Server]) -> None:
    answer = HEALTH.replace(b"application/json", b"Application/JSON; charset=utf-8")
    assert a_client(serve((answer,))).get_health().status == "ok"


def moved(location: str, status: bytes = b"307 Temporary Redirect") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nlocation: " + location.encode() + b"\r\ncontent-length: 0\r\n\r\n"


def test_the_token_does_not_follow_a_redirect(serve: Callable[..., Server]) -> None:
    elsewhere = serve((HEALTH,))
    server = serve((moved(f"{elsewhere.url}/v1/health"),))
    with pytest.raises(NotARegistry, match="redirects to") as raised:
        a_client(server).get_health()
    assert "AOT_URL" in raised.value.hint
    assert elsewhere.connections == 0


def a_link(url: str, content: bytes = BODY, method: str = "GET") -> Link:
    return Link(digest=Digest.of(content), size_bytes=len(content), url=url, method=method)


def got(link: Link) -> bytes:
    into = io.BytesIO()
    get_blob(HttpTransport(), link, into, limit_bytes=link.size_bytes, timeout_seconds=5, retry=ONCE)
    return into.getvalue()


def test_a_link_follows_a_redirect_to_another_host(serve: Callable[..., Server]) -> None:
    elsewhere = serve((HEALTH,))
    server = serve((moved(f"{elsewhere.url}/bucket/blob?sig=1"),))
    assert got(a_link(f"{server.url}/blobs/x")) == BODY
    assert elsewhere.requests[0].startswith(b"GET /bucket/blob?sig=1 HTTP/1.1")


def test_redirects_end(serve: Callable[..., Server]) -> None:
    server = serve((moved("/again"), moved("/again"), moved("/again"), moved("/again")))
    with pytest.raises(RegistryError, match="too often"):
        got(a_link(f"{server.url}/blobs/x"))


REFUSAL = b'{"code":"forbidden","message":"the link expired"}'
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(REFUSAL) + REFUSAL


def test_a_refusal_before_the_body_was_read_is_understood(serve: Callable[..., Server], tmp_path: Path) -> None:
    def refuse(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(REFUSED)
        connection.shutdown(socket.SHUT_WR)
        time.sleep(1)  # the sender meets a full window, not yet a reset

    content = bytes(30_000_000)
    path = tmp_path / "big"
    path.write_bytes(content)
    server = serve(refuse)
    link = a_link(f"{server.url}/blobs/x", content, "PUT")
    with pytest.raises(Forbidden, match="the link expired"):
        put_blob(HttpTransport(), link, path, timeout_seconds=5, retry=ONCE)


def test_a_forked_child_uses_no_connection_of_its_parent(serve: Callable[..., Server]) -> None:
    server = serve((HEALTH, HEALTH), (HEALTH,))
    client = a_client(server)
    client.get_health()
    child = os.fork()
    if child == 0:
        # The server is in its first connection: this one waits in the backlog, which is all that matters here.
        taken = client.transport._take(("http", "127.0.0.1", int(server.url.rpartition(":")[2])))  # type: ignore[attr-defined]
        os._exit(0 if taken is None else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    client.get_health()
    assert server.connections == 1


def test_a_certificate_is_checked(serve: Callable[..., Server], tmp_path: Path) -> None:
    pem, context = certificate(tmp_path)
    server = serve((HEALTH,), (HEALTH,), context=context)
    patient = RetryPolicy(attempts=5)
    with pytest.raises(InvalidConfig, match="not trusted"):
        RegistryClient(HttpTransport(), server.url, None, retry=patient).get_health()
    trusting = RegistryClient(HttpTransport(ca_file=pem), server.url, None, retry=ONCE)
    assert trusting.get_health().status == "ok"
