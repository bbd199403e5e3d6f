"""The short way from a request to the function of its endpoint, for what every pod asks at its start.

The framework finds the route, and answers what is refused; what it does between them for any signature that a function
may have (guards, dependencies, parameters, responses) took more time than the database. The rules are the same ones:
`auth.authenticate` decides who calls, the one codec reads bodies and writes replies.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from aot.errors import InvalidInput
from aot.schema.codec import decode, encode
from registry.api import auth
from registry.deps import Deps


class Direct:
    """Stands before the framework's own handling of one endpoint, and in its place.

    For functions that take `deps`, `caller`, the path's parameters as text, and a body where the endpoint has one.
    """

    def __init__(self, function: Callable[..., Any], kind: Any, *, app: ASGIApp) -> None:
        """`kind`: the type of the body, None where there is none."""
        self._function = function
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as the function does, and what authentication raises."""
        request: Request[Any, Any, Any] = Request(scope, receive, send)  # type: ignore[arg-type]
        await auth.authenticate(request, request.route_handler)
        body = () if self._kind is None else (await _read(request, self._kind),)
        deps, caller = request.app.state.deps, request.auth
        loop = asyncio.get_running_loop()
        content = await loop.run_in_executor(None, self._answer, body, request.path_params, deps, caller)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    def _answer(self, body: tuple[Any, ...], place: dict[str, str], deps: Deps, caller: Any) -> bytes:
        return encode(self._function(*body, **place, deps=deps, caller=caller))


async def _read(request: Request[Any, Any, Any], kind: Any) -> Any:
    """Raises MalformedDocument, InvalidInput, and the framework's refusal of what is too large."""
    content = await request.body()
    if not content:
        raise InvalidInput("wanted a body, found none", hint="the API is described at /schema")
    return decode(content, kind)
