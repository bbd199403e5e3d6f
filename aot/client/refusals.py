"""What a refusal means: the registry's own body, an object store's XML, or something in between that is neither."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from aot.client.transport import Reply
from aot.errors import (
    AotError,
    BlobNotFound,
    DigestMismatch,
    Forbidden,
    MalformedDocument,
    NotARegistry,
    RateLimited,
    RegistryError,
    RegistryUnreachable,
    StorageUnavailable,
)
from aot.schema.codec import decode
from aot.schema.wire.blobs import Link
from aot.schema.wire.errors import ErrorBody

_XML_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_XML_MESSAGE = re.compile(rb"<Message>([^<]{0,300})</Message>")
_WRONG_BYTES = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
_PASSING = {
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "ConditionalRequestConflict",
    "IncompleteBody",
}
# Of the session that the registry has signed with, said with 400 (Amazon S3 API Reference, "Error responses").
_OUT_OF_DATE = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_LINK = "refused_link"  # in the details of an error: what the link leads to


def is_json(reply: Reply) -> bool:
    """Whether the body may be a registry's: one that says nothing of its type may be."""
    kind = reply.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    return kind == "application/json"


def error_of(reply: Reply, answer: bytes, *, wish: str) -> AotError:
    """The error that the registry's answer stands for."""
    try:
        return decode(answer, ErrorBody).to_error()
    except MalformedDocument:
        pass
    kind = reply.headers.get("content-type", "no content type")
    message = f"{wish} was answered {reply.status} with {kind}, not by a registry"
    if reply.status == 429:
        return RateLimited(message, hint="a proxy limits requests", details=_retry_after(reply))
    if reply.status >= 500:
        # A load balancer whose registry is gone.
        return RegistryUnreachable(message, hint="see whether the registry runs", details=_retry_after(reply))
    return NotARegistry(message, hint="check AOT_URL: something else answers there")


def blob_error_of(reply: Reply, answer: bytes, *, wish: str) -> AotError:
    """The error that the answer to a blob's link stands for."""
    try:
        return decode(answer, ErrorBody).to_error()
    except MalformedDocument:
        pass
    code = _first(_XML_CODE, answer)
    said = f"{wish} was answered {reply.status}" + (f" {code}: {_first(_XML_MESSAGE, answer)}" if code else "")
    if code in _WRONG_BYTES:
        return DigestMismatch(said, hint="the file changed while it was sent; make its digest again")
    if code in _PASSING or reply.status == 429 or reply.status >= 500:
        return StorageUnavailable(said, hint="the object store is busy", details=_retry_after(reply))
    if reply.status == 404:
        return BlobNotFound(said, hint="the blob was deleted or never uploaded")
    if code == "RequestTimeTooSkewed":
        return Forbidden(said, hint="the clocks of the registry and of the object store differ: set both by NTP")
    if reply.status in (401, 403) or code in _OUT_OF_DATE:
        return Forbidden(said, hint="links expire: ask the registry for a new one; if it repeats, compare the clocks")
    return RegistryError(said, hint="the link does not lead to a blob store")


@contextmanager
def through(link: Link) -> Iterator[None]:
    """Mark the RegistryErrors of the block as those of this link, for `is_of_link`."""
    try:
        yield
    except RegistryError as error:
        error.details[_LINK] = str(link.digest)
        raise


def is_of_link(error: AotError) -> bool:
    """Whether a link was refused: another one may do better. What the registry itself refuses stays refused."""
    return isinstance(error, RegistryError) and _LINK in error.details


def _first(shape: re.Pattern[bytes], answer: bytes) -> str:
    found = shape.search(answer)
    return found[1].decode(errors="replace") if found else ""


def _retry_after(reply: Reply) -> dict[str, float]:
    seconds = reply.headers.get("retry-after", "")
    return {"retry_after_seconds": float(seconds)} if seconds.isdigit() else {}
