"""One request of the API: address, token, body, answer or error, and when to try again."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from aot.client.older import MOST_FIELDS, not_served, without_unknown
from aot.client.refusals import error_of, is_json
from aot.client.retry import RetryPolicy, retried
from aot.client.transport import Reply, Transport
from aot.errors import InvalidConfig, MalformedDocument, NotARegistry, RegistryError, Unavailable
from aot.schema.codec import decode, encode
from aot.schema.endpoints import ENDPOINTS, Endpoint

REPLY_LIMIT_BYTES = 256 << 20
TIMEOUT_SECONDS = 30.0
# Sent twice, these do something twice: they are repeated only when the first cannot have arrived.
_NOT_REPEATED = frozenset({"claim", "create_token", "send_receipt"})


class Calls:
    """What every group of methods of RegistryClient stands on.

    `token` is a secret: it goes to `url` alone, does not follow redirects, and is not shown in errors.
    """

    def __init__(
        self,
        transport: Transport,
        url: str,
        token: str | None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry: RetryPolicy | None = None,
    ) -> None:
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidConfig(
                "the token holds characters that no token has", hint="check AOT_TOKEN for spaces and line ends"
            )
        self.transport = transport
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self.retry_policy = retry or RetryPolicy()
        self._token = token

    def with_token(self, token: str) -> Self:
        """The same client with another right: a worker's, once it has claimed a build."""
        return type(self)(
            self.transport, self.url, token, timeout_seconds=self.timeout_seconds, retry=self.retry_policy
        )

    def call(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> Any:
        """Call the endpoint `name` of the table, and return what it replies.

        Raises the error that the registry meant, RegistryUnreachable when there was no answer, NotARegistry when
        something else answered, MalformedDocument when a registry's answer does not decode.

        An account (`aot.client.older`) is told to an older registry without the fields that it refuses.
        """
        endpoint = ENDPOINTS[name]
        url = self.url + _filled(endpoint.path, path or {}) + _query_of(query or {})
        content = None if body is None else encode(body)

        def may_retry(error: Unavailable) -> bool:
            return name not in _NOT_REPEATED or error.details.get("sent") is False

        for _ in range(MOST_FIELDS):
            try:
                return retried(partial(self._once, endpoint, url, content), self.retry_policy, may_retry=may_retry)
            except MalformedDocument as error:
                left = None if content is None else without_unknown(name, content, error)
                if left is None:
                    raise
                content = left
        raise InvalidConfig(
            f"{self.url} refused {MOST_FIELDS} fields of one request to {endpoint.path}",
            hint="see whether AOT_URL is a registry's, and of which version",
        )

    def _once(self, endpoint: Endpoint, url: str, content: bytes | None) -> Any:
        headers = {"accept": "application/json", "user-agent": _user_agent()}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if content is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(content))}
        elif endpoint.method != "GET":
            headers["content-length"] = "0"
        wish = f"{endpoint.method} {endpoint.path}"
        reply = self.transport.send(
            endpoint.method, url, headers=headers, body=content, timeout_seconds=self.timeout_seconds
        )
        try:
            answer = read_all(reply, limit_bytes=REPLY_LIMIT_BYTES)
        finally:
            reply.close()
        if 200 <= reply.status < 300:
            if answer and not is_json(reply):  # a login page, or a portal's
                raise error_of(reply, answer, wish=wish)
            return None if endpoint.reply is None else decode(answer, endpoint.reply)
        if 300 <= reply.status < 400:
            raise NotARegistry(
                f"{self.url} redirects to {reply.headers.get('location', 'nowhere')[:200]}",
                hint="set AOT_URL to where the registry is; the token is not sent elsewhere",
            )
        error = error_of(reply, answer, wish=wish)
        raise not_served(error, status=reply.status, wish=wish, url=self.url) or error


def read_all(reply: Reply, *, limit_bytes: int) -> bytes:
    """The rest of the body. Raises RegistryError when it is longer than `limit_bytes`."""
    chunks: list[bytes] = []
    size = 0
    while chunk := reply.read(1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit_bytes:
            raise RegistryError(f"the answer is longer than {limit_bytes} bytes", hint="ask for less at once")
    return b"".join(chunks)


def _filled(path: str, values: Mapping[str, str]) -> str:
    from urllib.parse import quote

    return path.format(**{name: quote(value, safe=":") for name, value in values.items()})


def _query_of(values: Mapping[str, Any]) -> str:
    from urllib.parse import urlencode

    given = [
        (name, str(one))
        for name, value in values.items()
        for one in (value if isinstance(value, tuple) else (value,))  # a tuple asks with each of its values
        if one is not None
    ]
    return f"?{urlencode(given)}" if given else ""


def _user_agent() -> str:
    from aot import __version__

    return f"aot/{__version__}"
