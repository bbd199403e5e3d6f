"""Errors on their way out: the only file that knows status codes.

Every AotError leaves as `{code, message, hint, details}`, from which the client raises the same class. Whatever else
is raised is a bug: its answer holds an id and nothing of the inside, and the log holds the rest under that id.
"""

import secrets
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from aot.errors import (
    AotError,
    ArtifactUnusable,
    BuildFailed,
    BundleWithdrawn,
    CompileFailed,
    Conflict,
    Forbidden,
    GuardFailed,
    IntegrityFailed,
    InvalidConfig,
    InvalidInput,
    NoCompatibleArtifact,
    NotFound,
    RateLimited,
    RegistryError,
    Unauthenticated,
    Unavailable,
)
from aot.schema.codec import encode
from aot.schema.wire.errors import ErrorBody

RETRY_SECONDS = 2
log = structlog.get_logger()

# By family; a class of its own stands only where it differs from its family.
STATUS: dict[type[AotError], int] = {
    InvalidInput: 400,
    InvalidConfig: 500,  # of this registry: its store refuses it (S3 answers 403)
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    BuildFailed: 409,
    BundleWithdrawn: 410,
    CompileFailed: 422,  # a proof that does not pass, at publish
    IntegrityFailed: 422,
    RateLimited: 429,
    Unavailable: 503,
    # What only clients raise. Should one appear here, it is our fault, and still says what it is.
    NoCompatibleArtifact: 500,
    ArtifactUnusable: 500,
    GuardFailed: 500,
    RegistryError: 500,
    AotError: 500,
}


def status_of(kind: type[AotError]) -> int:
    """The status code of the nearest class that has one."""
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def answer(error: AotError) -> Response[bytes]:
    headers = {}
    match error:
        case Unauthenticated():
            headers["WWW-Authenticate"] = "Bearer"
        case RateLimited():
            headers["Retry-After"] = str(error.details.get("retry_after_seconds", RETRY_SECONDS))
        case Unavailable():
            headers["Retry-After"] = str(RETRY_SECONDS)
    return _response(ErrorBody.of(error), status=status_of(type(error)), headers=headers)


def on_aot_error(request: Request[Any, Any, Any], error: AotError) -> Response[bytes]:
    status = status_of(type(error))
    if status >= 500:
        log.warning("refused", path=request.url.path, code=error.code, message=error.message)
    return answer(error)


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework refuses by itself: unknown routes and methods, query parameters, bodies over the limit."""
    status = error.status_code
    if status == 404:
        body = ErrorBody.of(NotFound("there is no such page", hint="the pages are listed at /schema"))
    elif status == 405:
        body = ErrorBody.of(InvalidInput(_wrong_method(request, error), hint="the API is described at /schema"))
    elif 400 <= status < 500:
        body = ErrorBody.of(InvalidInput(_reasons(error) or error.detail, hint="the API is described at /schema"))
    else:
        return on_bug(request, error)
    return _response(body, status=status, headers=dict(error.headers or {}))


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    number = secrets.token_hex(6)
    log.error("bug", id=number, method=request.method, path=request.url.path, exc_info=error)
    body = ErrorBody.of(
        AotError(
            f"the registry failed on this request; its log holds the reason under {number}",
            hint="report it with this id",
            details={"id": number},
        )
    )
    return _response(body, status=500, headers={})


def _wrong_method(request: Request[Any, Any, Any], error: HTTPException) -> str:
    known = {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow", "")
    methods = " or ".join(sorted(known.replace(" ", "").split(","))) or "another method"
    return f"wanted {methods} of {request.url.path}, found {request.method}"


def _reasons(error: HTTPException) -> str:
    extra = error.extra if isinstance(error.extra, list) else []
    named = [(item.get("key"), item.get("message")) for item in extra if isinstance(item, dict)]
    return "; ".join("wanted a body, found none" if key == "data" else f"{key}: {text}" for key, text in named)


def _response(body: ErrorBody, *, status: int, headers: dict[str, str]) -> Response[bytes]:
    return Response(encode(body), status_code=status, headers=headers, media_type="application/json")


HANDLERS: dict[Any, Any] = {AotError: on_aot_error, HTTPException: on_http_exception, Exception: on_bug}
