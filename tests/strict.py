"""An S3 server that compares what Amazon's and MinIO compare, and moto and nanio do not: nanio behind a front.

| Request                               | Where it does not hold, and nothing is stored or removed then         |
|---------------------------------------|-----------------------------------------------------------------------|
| PUT with `x-amz-checksum-sha256`      | 400 BadDigest: an object's body or a part's                           |
| PUT or copy with `if-none-match: *`   | 412 PreconditionFailed: something lies there, or came in the meantime |
| DELETE, GET, HEAD with `if-match`     | 412; of what is not there, what nanio answers                         |
| copy with `x-amz-copy-source-if-match`| 412: of an object, or of a range of it into a part                    |

(Amazon S3 API Reference: PutObject, UploadPart, CopyObject, UploadPartCopy, DeleteObject, GetObject.) Parts that are
copied, which nanio does not know at all, are made here. Signatures are compared first, as there: the front stands
between nanio's own check and its handlers. Bodies are held in memory.
"""

import asyncio
import base64
import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from nanio.errors import NoSuchKey, S3Error
from nanio.storage.backend import ObjectInfo
from nanio.storage.multipart import MultipartManager
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.nanio import nanio_app
from tests.serving import listening, serving


class BadDigest(S3Error):
    code, http_status = "BadDigest", 400
    message = "The SHA256 you specified did not match the calculated checksum."


class PreconditionFailed(S3Error):
    code, http_status = "PreconditionFailed", 412
    message = "At least one of the pre-conditions you specified did not hold"


@contextlib.contextmanager
def strict_server(directory: Path, *, keys: Mapping[str, str]) -> Iterator[str]:
    """Serve buckets below `directory` to these access keys, and yield the address."""
    app = nanio_app(directory, keys=keys)
    app.user_middleware.append(Middleware(Strict, storage=app.state.storage))  # the last is the innermost
    with listening() as (listener, url), serving(app, listener):
        yield url


@dataclass(frozen=True)
class Asked:
    """One request about an object."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]

    @classmethod
    def of(cls, scope: Scope) -> "Asked | None":
        """None: it is about a bucket, or about all of them."""
        bucket, _, key = scope["path"].lstrip("/").partition("/")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        return cls(scope["method"], bucket, key, query, headers) if key else None

    @property
    def of_an_upload(self) -> bool:
        return "uploadId" in self.query

    @property
    def source(self) -> tuple[str, str] | None:
        """Bucket and key of what is to be copied."""
        bucket, _, key = unquote(self.headers.get("x-amz-copy-source", "")).lstrip("/").partition("/")
        return (bucket, key) if key else None


class Strict:
    """The front, as ASGI middleware. One at a time changes a key, so that a condition holds until that is done."""

    def __init__(self, app: ASGIApp, *, storage: Any) -> None:
        self._app = app
        self._storage = storage
        self._turns: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked.of(scope) if scope["type"] == "http" else None
        if asked is None:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(asked, scope, receive, send)
        except S3Error as error:
            answer = Response(error.to_xml(), status_code=error.http_status, media_type="application/xml")
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """The answer; None where it was given."""
        if asked.method not in ("PUT", "DELETE"):
            self._compare_found(asked)
            await self._app(scope, receive, send)
            return None
        body = await _body(receive)
        if body is None:
            return None  # the sender has hung up
        async with self._turns[asked.bucket, asked.key]:
            self._compare_found(asked)
            self._compare_source(asked)
            _compare_checksum(asked, body)
            if asked.of_an_upload and asked.source is not None:
                return await self._copy_part(asked, asked.source)
            await self._app(scope, _again(body), send)
        return None

    def _compare_found(self, asked: Asked) -> None:
        if asked.of_an_upload:
            return
        found = self._find(asked.bucket, asked.key)
        if asked.headers.get("if-none-match") == "*" and asked.method == "PUT" and found is not None:
            raise PreconditionFailed
        _compare_version(asked.headers.get("if-match"), found)

    def _compare_source(self, asked: Asked) -> None:
        if asked.source is not None:
            _compare_version(asked.headers.get("x-amz-copy-source-if-match"), self._find(*asked.source))

    async def _copy_part(self, asked: Asked, source: tuple[str, str]) -> Response:
        found = self._storage.head_object(*source)
        spread = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("x-amz-copy-source-range", ""))
        first, last = (int(spread[1]), int(spread[2])) if spread else (0, found.size - 1)
        content = await self._storage.get_object(*source, range_start=first, range_end=last)
        part = await MultipartManager(self._storage.data_dir).upload_part(
            asked.query["uploadId"][0], int(asked.query["partNumber"][0]), content.body
        )
        copied = f"<ETag>{escape(part.etag)}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        return Response(f"<CopyPartResult>{copied}</CopyPartResult>", media_type="application/xml")

    def _find(self, bucket: str, key: str) -> ObjectInfo | None:
        try:
            return self._storage.head_object(bucket, key)
        except NoSuchKey:
            return None


def _compare_version(wanted: str | None, found: ObjectInfo | None) -> None:
    if wanted is not None and found is not None and wanted not in ("*", found.etag, found.etag.strip('"')):
        raise PreconditionFailed


def _compare_checksum(asked: Asked, body: bytes) -> None:
    announced = asked.headers.get("x-amz-checksum-sha256")
    if announced is not None and announced != base64.b64encode(hashlib.sha256(body).digest()).decode():
        raise BadDigest


async def _body(receive: Receive) -> bytes | None:
    chunks = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(chunks)


def _again(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
