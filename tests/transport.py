"""RegistryClient into an application of this process: no socket, but real requests and answers."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from aot.client import Body, RegistryClient, Reply, RetryPolicy
from aot.errors import RegistryUnreachable
from tests.service import URL, Http, Service


class AppReply:
    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._left = response.content

    def read(self, limit_bytes: int) -> bytes:
        chunk, self._left = self._left[:limit_bytes], self._left[limit_bytes:]
        return chunk

    def close(self) -> None:
        self._left = b""


class AppTransport:
    """A Transport whose network is the test client of the application. `gone` makes it unreachable."""

    def __init__(self, http: Http) -> None:
        self.sent: list[tuple[str, str]] = []
        self.gone = False
        self._http = http

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body = None, timeout_seconds: float
    ) -> Reply:
        if self.gone:
            raise RegistryUnreachable("the registry was taken away", details={"sent": False})
        parts = urlsplit(url)
        self.sent.append((method, parts.path))
        content = body if isinstance(body, bytes) or body is None else body.read()
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        if self._http.leads_away(url):
            target = url
        return AppReply(self._http.request(method, target, content=content, headers=dict(headers)))


def client_of(service: Service, *, token: str | None = None) -> RegistryClient:
    """A client of this service, by default the administrator's, that does not wait between attempts."""
    retry = RetryPolicy(attempts=3, sleep=lambda _: None)
    return RegistryClient(AppTransport(service.http), URL, service.admin if token is None else token, retry=retry)
