"""An HTTP proxy in front of the object store that misbehaves when told to. Signatures stay valid: the host is its own.

It keeps every body in memory; the blobs of a campaign are small.
"""

import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.schedule import Fault

BUSY = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>told to</Message></Error>"
HOP = {"connection", "transfer-encoding", "keep-alive"}


class FaultProxy:
    """Listens on a port of its own; `mode` is what happens to a part of the requests now."""

    def __init__(
        self, upstream_port: int, *, seed: int, ledger: Ledger, share: float = 0.5, blobs_below: str = "/sha256/"
    ) -> None:
        self.upstream_port = upstream_port
        self.ledger = ledger
        self.blobs_below = blobs_below
        self.mode: Fault | None = None
        self._share = share
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def choose(self) -> Fault | None:
        """What happens to the next request."""
        with self._lock:
            return self.mode if self.mode is not None and self._random.random() < self._share else None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def flipped(body: bytes, *, at: float) -> bytes:
    """The same length, one byte different: at this part of it."""
    place = int(at * (len(body) - 1))
    return body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Silent."""

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            fault = proxy.choose()
            is_blob = proxy.blobs_below in self.path
            match fault:
                case Fault.STORE_500 | Fault.STORE_503:
                    self.count(fault)
                    status, code = (500, b"InternalError") if fault is Fault.STORE_500 else (503, b"SlowDown")
                    return self.answer(status, {"content-type": "application/xml"}, BUSY % code)
                case Fault.STORE_SLOW:
                    self.count(fault)
                    time.sleep(1.0)
                case Fault.STORE_WRONG if is_blob and self.command == "PUT" and body:
                    self.count(fault)
                    body = flipped(body, at=0.3)
            try:
                status, headers, answer = self.ask(body)
            except OSError:
                self.close_connection = True  # the store is away: so is the proxy
                return None
            if fault is Fault.STORE_SILENT:
                self.count(fault)
                self.close_connection = True
                return None
            if is_blob and self.command == "GET" and status in (200, 206) and answer:
                if fault is Fault.STORE_WRONG:
                    self.count(fault)
                    answer = flipped(answer, at=0.7)  # elsewhere: two faults must not make a right one
                if fault is Fault.STORE_CUT:
                    self.count(fault)
                    return self.answer(status, headers, answer, send=len(answer) // 2)
            return self.answer(status, headers, answer)

        def count(self, fault: Fault) -> None:
            proxy.ledger.saw(f"requests hit: {fault}")

        def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.upstream_port, timeout=20)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in HOP and name.lower() != "expect":
                        connection.putheader(name, value)
                connection.endheaders(body or None)
                response = connection.getresponse()
                answer = response.read()
                headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP}
                return response.status, headers, answer
            except http.client.HTTPException as error:
                raise OSError(str(error)) from error
            finally:
                connection.close()

        def answer(self, status: int, headers: dict[str, str], body: bytes, *, send: int | None = None) -> None:
            self.send_response_only(status)
            sized = any(name.lower() == "content-length" for name in headers)
            for name, value in headers.items():
                self.send_header(name, value)
            if not sized and status not in (204, 304):
                self.send_header("Content-Length", str(len(body)))
            try:
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body if send is None else body[:send])
                if send is not None:
                    self.close_connection = True
            except OSError:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

    return Handler
