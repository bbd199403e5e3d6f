"""The short way from a request to the function of its endpoint, for what every pod asks at its start.

The framework finds the route, and answers what is refused; what it does between them for any signature that a function
may have (guards, dependencies, parameters, responses) took more time than the database. The rules are the same ones:
`auth.authenticate` decides who calls, the one codec reads bodies and writes replies.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from aot.errors import InvalidInput
from aot.schema.codec import decode, encode
from registry.api import auth
from registry.deps import Deps

READ_SCHEMA = "the API is described at /schema"
SWITCH = {"true": True, "false": False}


class Direct:
    """Stands before the framework's own handling of one endpoint, and in its place.

    For functions that take `deps`, `caller`, the path's parameters as text, a body where the endpoint has one, and
    switches (`?links=true`), which are off where the query does not name them.
    """

    def __init__(
        self, function: Callable[..., Any], kind: Any, *, switches: frozenset[str] = frozenset(), app: ASGIApp
    ) -> None:
        """`kind`: the type of the body, None where there is none."""
        self._function = function
        self._kind = kind
        self._switches = switches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as the function does, and what authentication raises."""
        request: Request[Any, Any, Any] = Request(scope, receive, send)  # type: ignore[arg-type]
        await auth.authenticate(request, request.route_handler)
        body = () if self._kind is None else (await _read(request, self._kind),)
        deps, caller = request.app.state.deps, request.auth
        loop = asyncio.get_running_loop()
        named = {**request.path_params, **self._switched(scope.get("query_string", b""))}
        content = await loop.run_in_executor(None, self._answer, body, named, deps, caller)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    def _switched(self, query: bytes) -> dict[str, bool]:
        """Raises InvalidInput for a switch that is neither on nor off."""
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else ()
        found = {}
        for name, value in given:
            if name in self._switches:
                if value not in SWITCH:
                    raise InvalidInput(f"wanted {name}=true or {name}=false, found {value[:64]!r}", hint=READ_SCHEMA)
                found[name] = SWITCH[value]
        return found

    def _answer(self, body: tuple[Any, ...], named: dict[str, Any], deps: Deps, caller: Any) -> bytes:
        return encode(self._function(*body, **named, deps=deps, caller=caller))


async def _read(request: Request[Any, Any, Any], kind: Any) -> Any:
    """Raises MalformedDocument, InvalidInput, and the framework's refusal of what is too large."""
    content = await request.body()
    if not content:
        raise InvalidInput("wanted a body, found none", hint=READ_SCHEMA)
    return decode(content, kind)
