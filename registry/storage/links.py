"""PUT, GET and HEAD of signed links, for the stores that the registry serves itself.

No bearer token: the signature is the right. Bodies are streamed through bounded buffers, and the disk is touched
in threads, so that a large transfer does not hold up the event loop. Mounted by `registry.app` beside the API;
errors leave as AotError, and the application's handlers turn them into answers.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
from litestar import Request, Response, get, head, put
from litestar.exceptions import InternalServerException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream

from aot.errors import AotError, BlobNotFound, Forbidden, SizeMismatch, StorageUnavailable
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.storage.protocol import BlobStore, ServedStore
from registry.storage.ranges import ByteRange, Unsatisfiable, parse_range

CHUNK_BYTES = 1 << 20
DRAIN_BYTES = 64 << 20
IDLE_SECONDS = 60.0
ENDED = "ended"
PATH = "/blobs/{digest:str}"


def link_routes(store: BlobStore) -> list[HTTPRouteHandler]:
    """Return the handlers that answer this store's links; none for a store whose links lead elsewhere."""
    if not isinstance(store, ServedStore):
        return []
    served = store
    # The application's authentication leaves these alone, its body limit too: the signature binds the size.
    options: dict[str, Any] = {"opt": {"exclude_from_auth": True}, "tags": ["blobs"]}

    @put(PATH, status_code=201, request_max_body_size=None, summary="Put a blob by a signed link", **options)
    async def put_blob(digest: FromPath[str], request: Request[Any, Any, Any]) -> Response[bytes]:
        try:
            blob = _granted(served, digest, request)
            await _receive(served, blob, request)
        except AotError as error:
            if ENDED not in error.details:  # else there is nothing to read on from
                await _drain(request)
            raise
        return Response(b"", status_code=201, headers={"ETag": _etag(blob.digest)})

    @get(PATH, summary="Get a blob by a signed link", media_type="application/octet-stream", **options)
    async def get_blob(digest: FromPath[str], request: Request[Any, Any, Any]) -> Response[Any]:
        return await _send(served, _granted(served, digest, request), request)

    @head(PATH, summary="Size of a blob by a signed link", **options)
    async def head_blob(digest: FromPath[str], request: Request[Any, Any, Any]) -> Response[None]:
        blob = _granted(served, digest, request)
        return Response(None, headers=_headers(blob, await _size_of(served, blob)))

    return [put_blob, get_blob, head_blob]


def _granted(store: ServedStore, digest: str, request: Request[Any, Any, Any]) -> Blob:
    """The blob that the link is for. Raises Forbidden unless the signature allows this method now."""
    query = request.query_params
    try:
        blob = Blob(digest=Digest.parse(digest), size_bytes=int(query["size"]))
        expires = int(query["expires"])
        signature = query["sig"]
    except (KeyError, ValueError):
        raise Forbidden("the link is incomplete", hint="ask the registry for a link, and use it as it is") from None
    store.signer.check(request.method, blob, expires=expires, signature=signature)
    return blob


async def _receive(store: ServedStore, blob: Blob, request: Request[Any, Any, Any]) -> None:
    announced = request.headers.get("content-length")
    if announced is not None and announced != str(blob.size_bytes):
        raise SizeMismatch(
            f"the link is for {blob.size_bytes} bytes, the request announces {announced}",
            hint="ask for an upload link with the right size",
        )
    writing = store.incoming(blob)
    writer = await anyio.to_thread.run_sync(writing.__enter__)
    try:
        async for chunk in _gathered(request.stream()):
            await anyio.to_thread.run_sync(writer.write, chunk)
    except BaseException as error:
        # Not in a thread: a cancelled request may not wait for one, and only a temporary file is removed here.
        if not writing.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        await anyio.to_thread.run_sync(writing.__exit__, None, None, None)


async def _send(store: ServedStore, blob: Blob, request: Request[Any, Any, Any]) -> Response[Any]:
    size = await _size_of(store, blob)
    wanted = parse_range(_range_header(request, blob), size=size)
    if wanted is Unsatisfiable.RANGE:
        return Response(b"", status_code=416, headers={"Content-Range": f"bytes */{size}"})
    file = await anyio.to_thread.run_sync(store.open, blob.digest)
    part = wanted or ByteRange(0, size)
    headers = _headers(blob, part.length)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return Stream(
        _read(file, part),
        status_code=200 if wanted is None else 206,
        headers=headers,
        media_type="application/octet-stream",
    )


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of at least CHUNK_BYTES: servers hand them out 64 KiB at a time.

    Raises StorageUnavailable when the sender hangs up, or sends nothing for IDLE_SECONDS: whoever is gone must not
    hold a file open.
    """
    pending = bytearray()
    while True:
        try:
            with anyio.fail_after(IDLE_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise _ended(f"the upload stood still for {IDLE_SECONDS:g} s") from None
        except InternalServerException as error:  # what the framework calls a sender that has hung up
            raise _ended("the upload was cut") from error
        if chunk is None:
            break
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def _ended(message: str) -> StorageUnavailable:
    return StorageUnavailable(message, hint="check the line, and put the blob again", details={ENDED: True})


async def _drain(request: Request[Any, Any, Any]) -> None:
    """Read on after a refusal: a client that is still sending would see a cut connection, not the answer."""
    seen = 0
    try:
        with anyio.move_on_after(IDLE_SECONDS):
            async for chunk in request.stream():
                seen += len(chunk)
                if seen > DRAIN_BYTES:
                    return
    except Exception:
        return  # the stream was read already, or the client is gone: the refusal is what matters


async def _size_of(store: ServedStore, blob: Blob) -> int:
    size = await anyio.to_thread.run_sync(store.stat, blob.digest)
    if size is None:
        raise BlobNotFound(f"the blob store does not hold {blob.digest}", hint="it was deleted or never uploaded")
    return size


def _range_header(request: Request[Any, Any, Any], blob: Blob) -> str | None:
    unless_changed = request.headers.get("if-range")
    if unless_changed is not None and unless_changed != _etag(blob.digest):
        return None
    return request.headers.get("range")


def _headers(blob: Blob, length: int) -> dict[str, str]:
    return {"ETag": _etag(blob.digest), "Accept-Ranges": "bytes", "Content-Length": str(length)}


def _etag(digest: Digest) -> str:
    return f'"{digest}"'


def _read(file: BinaryIO, part: ByteRange) -> Iterator[bytes]:
    with file:
        file.seek(part.start)
        left = part.length
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
