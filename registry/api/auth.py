"""Who calls: every endpoint of the table needs a bearer token, and most of them a scope."""

from datetime import datetime
from typing import Any

from litestar.concurrency import sync_to_thread
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from aot.errors import Unauthenticated
from aot.schema.endpoints import ENDPOINTS, Endpoint
from aot.schema.wire.workers import Scope
from registry.deps import Deps
from registry.services import tokens

SCHEME = "bearer "
# What a pod asks at its start. These two take a caller's word who was looked up just now (`registry.services.callers`).
AT_POD_START = frozenset({"resolve", "get_download_links"})


async def authenticate(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard of the whole application: the caller's Principal becomes `request.auth`.

    Raises Unauthenticated, and Forbidden where the endpoint's scope is missing. Routes that are not in the table
    (pages, links that carry their own signature) say `exclude_from_auth`.
    """
    if handler.opt.get("exclude_from_auth"):
        return
    deps: Deps = connection.app.state.deps
    secret = bearer(connection.headers.get("authorization"))
    # What the framework adds beside the table (OPTIONS) needs a token, and no scope.
    name = handler.opt.get("endpoint", "")
    endpoint = ENDPOINTS.get(name)
    principal = deps.callers.find(secret) if name in AT_POD_START else None
    if principal is None:
        principal = await _look_up(secret, deps)
    connection.scope["auth"] = principal
    if endpoint is not None and endpoint.scope is not None and not hides(endpoint):
        principal.require(endpoint.scope)


async def _look_up(secret: str, deps: Deps) -> tokens.Principal:
    """Ask the database, and remember what it says. Raises Unauthenticated."""
    if tokens.is_probe(secret, deps.probe_secret):
        return tokens.PROBE
    asked_at = deps.callers.monotonic()
    principal, now = await sync_to_thread(_principal, secret, deps)
    deps.callers.remember(secret, principal, asked_at=asked_at, now=now)
    return principal


def _principal(secret: str, deps: Deps) -> tuple[tokens.Principal, datetime]:
    now = deps.clock()
    with deps.sessions.glancing() as reader:
        return tokens.authenticate(secret, now=now, reader=reader), now


def hides(endpoint: Endpoint) -> bool:
    """True for what reads one thing by its name: there a caller without the scope gets the thing's NotFound.

    The service says it, in the same words for what exists and what does not.
    """
    return endpoint.scope is Scope.READ and "{" in endpoint.path


def bearer(header: str | None) -> str:
    """The secret of an Authorization header. Raises Unauthenticated."""
    if header is None or header[: len(SCHEME)].lower() != SCHEME or not header[len(SCHEME) :].strip():
        raise Unauthenticated("the request has no bearer token", hint="set AOT_TOKEN, or AOT_TOKEN_FILE")
    return header[len(SCHEME) :].strip()
