"""Transport over HTTP/1.1 with the standard library: connections kept alive, bodies streamed both ways.

No proxies: the environment is not read here. Certificates are checked against the system's, or `ca_file`.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.client.transport import Body, Reply
from aot.errors import InvalidConfig, RegistryUnreachable

if TYPE_CHECKING:
    import http.client
    import ssl
    from urllib.parse import SplitResult

IDLE_CONNECTIONS = 16
BLOCK_BYTES = 1 << 18

_Origin = tuple[str, str, int | None]


class HttpTransport:
    """Safe to share between threads; a forked child starts with no connections."""

    def __init__(self, *, ca_file: Path | None = None) -> None:
        self._ca_file = ca_file
        self._lock = threading.Lock()
        self._idle: dict[_Origin, list[http.client.HTTPConnection]] = {}
        self._process = os.getpid()
        self._context: ssl.SSLContext | None = None

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            origin: _Origin = (parts.scheme, parts.hostname or "", parts.port)
        except ValueError as error:
            raise _bad_address(url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or any(char <= " " for char in url):
            raise _bad_address(url)
        connection = self._connected(origin, timeout_seconds)
        try:
            response = _exchange(connection, method, _target(parts), body, headers)
        except BaseException as error:
            connection.close()
            if isinstance(error, _network_errors()):
                raise _unreachable(origin, error, sent=True) from error
            raise
        return _HttpReply(self, origin, connection, response)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def give_back(self, origin: _Origin, connection: "http.client.HTTPConnection") -> None:
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            if self._process == os.getpid() and len(idle) < IDLE_CONNECTIONS:
                idle.append(connection)
                return
        connection.close()

    def _connected(self, origin: _Origin, timeout_seconds: float) -> "http.client.HTTPConnection":
        while (connection := self._take(origin)) is not None:
            if connection.sock is not None and not _has_been_closed(connection.sock):
                connection.sock.settimeout(timeout_seconds)
                return connection
            connection.close()
        connection = self._make(origin, timeout_seconds)
        try:
            connection.connect()
        except UnicodeError as error:
            raise _bad_address(f"{origin[0]}://{origin[1]}") from error
        except _network_errors() as error:
            connection.close()
            raise _unreachable(origin, error, sent=False) from error
        return connection

    def _take(self, origin: _Origin) -> "http.client.HTTPConnection | None":
        with self._lock:
            if self._process != os.getpid():
                # After a fork, parent and child would write into the same connections.
                self._process, self._idle = os.getpid(), {}
            idle = self._idle.get(origin)
            return idle.pop() if idle else None

    def _make(self, origin: _Origin, timeout_seconds: float) -> "http.client.HTTPConnection":
        import http.client

        scheme, host, port = origin
        options: dict[str, Any] = {"timeout": timeout_seconds, "blocksize": BLOCK_BYTES}
        if scheme == "http":
            return http.client.HTTPConnection(host, port, **options)
        return http.client.HTTPSConnection(host, port, context=self._tls(), **options)

    def _tls(self) -> "ssl.SSLContext":
        import ssl

        if self._context is None:  # made twice at worst; reading the certificates takes 20 ms
            try:
                self._context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise InvalidConfig(
                    f"could not read certificates from {self._ca_file}: {error}", hint="name a PEM file"
                ) from error
        return self._context


class _HttpReply:
    def __init__(
        self,
        transport: HttpTransport,
        origin: _Origin,
        connection: "http.client.HTTPConnection",
        response: "http.client.HTTPResponse",
    ) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._transport = transport
        self._origin = origin
        self._connection: http.client.HTTPConnection | None = connection
        self._response = response

    def read(self, limit_bytes: int) -> bytes:
        try:
            chunk = self._response.read(limit_bytes)
        except _network_errors() as error:
            self._drop()
            raise _unreachable(self._origin, error, sent=True) from error
        # http.client reports an early end of a sized body as its end.
        if not chunk and self._response.length:
            missing = self._response.length
            self._drop()
            raise RegistryUnreachable(
                f"the connection to {self._origin[1]} ended {missing} bytes early",
                hint="check the network",
                details={"sent": True},
            )
        return chunk

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        whole = self._response.isclosed() and not self._response.will_close
        if whole and connection.sock is not None:
            self._transport.give_back(self._origin, connection)
        else:
            connection.close()  # the rest of the body would be taken for the next answer

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _exchange(
    connection: "http.client.HTTPConnection", method: str, target: str, body: Body, headers: Mapping[str, str]
) -> "http.client.HTTPResponse":
    try:
        connection.request(method, target, body=body, headers=dict(headers))
    except (BrokenPipeError, ConnectionResetError):
        # A server may refuse before it has read everything: its answer says more than the broken pipe.
        if connection.sock is None:
            raise
        response = connection.response_class(connection.sock, method=method)
        response.begin()
        response.will_close = True
        return response
    return connection.getresponse()


def _has_been_closed(sock: Any) -> bool:
    """True when the server has hung up on an idle connection, or says something that nobody asked."""
    import select

    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _target(parts: "SplitResult") -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _network_errors() -> tuple[type[Exception], ...]:
    import http.client

    return (OSError, http.client.HTTPException)


def _bad_address(url: str) -> InvalidConfig:
    return InvalidConfig(f"wanted an http or https address, found {url[:200]!r}", hint="check AOT_URL")


def _unreachable(origin: _Origin, error: Exception, *, sent: bool) -> RegistryUnreachable | InvalidConfig:
    import http.client
    import ssl

    if isinstance(error, http.client.InvalidURL):
        return _bad_address(str(error))
    where = f"{origin[0]}://{origin[1]}" + (f":{origin[2]}" if origin[2] else "")
    reason = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return InvalidConfig(
            f"the certificate of {where} is not trusted: {error.verify_message}",
            hint="install its authority, or set SSL_CERT_FILE",
        )
    return RegistryUnreachable(
        f"could not reach {where}: {reason}",
        hint="check AOT_URL, and that the registry runs and this host may reach it",
        details={"sent": sent},
    )
