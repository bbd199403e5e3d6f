"""Probe of the blob store: random bytes through signed links, as clients do it, and removed again."""

import contextlib
import email.utils
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from aot.errors import AotError
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link
from registry.clock import Clock
from registry.storage.protocol import BlobStore, ServedStore

Step = tuple[str, bool | None, str, str]
LIVES = timedelta(minutes=5)
WAIT_SECONDS = 10.0
SIZE_BYTES = 64 << 10


@dataclass(frozen=True)
class Answer:
    """`status` 0: there was no answer, and `body` says why."""

    status: int
    body: bytes = b""
    date: str | None = None


def probe(store: BlobStore, *, clock: Clock) -> Iterator[Step | timedelta]:
    """Name, whether it is right (None: it works at a cost), what was found, what to set; the clock's skew besides.

    Raises StorageUnavailable and InvalidConfig as the store does.
    """
    content = secrets.token_bytes(SIZE_BYTES)
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    try:
        yield from _written_directly(store, blob, content) if isinstance(store, ServedStore) else ()
        yield from _through_links(store, blob, content, clock=clock)
        yield from _parts(store)
    finally:
        with contextlib.suppress(AotError):
            store.delete(blob.digest)


def _written_directly(store: ServedStore, blob: Blob, content: bytes) -> Iterator[Step]:
    with store.incoming(blob) as writer:
        writer.write(content)
    good = store.stat(blob.digest) == blob.size_bytes
    yield "directory", good, "bytes were written and are there" if good else "bytes were written and are not there", ""


def _through_links(store: BlobStore, blob: Blob, content: bytes, *, clock: Clock) -> Iterator[Step | timedelta]:
    put = _follow(store.upload_link(blob, expires_in=LIVES), content)
    if put.status == 0 and isinstance(store, ServedStore):
        hint = "start `serve` and check again; where it runs, AOT_PUBLIC_URL must lead to it"
        yield "links", None, f"not checked, nothing serves them: {put.body.decode()}", hint
        return
    good = put.status in (200, 201) or (put.status == 412 and isinstance(store, ServedStore))
    yield "PUT", good, _said(put), "" if good else _hint(put)
    if not good:
        return
    if put.date is not None:
        yield email.utils.parsedate_to_datetime(put.date) - clock()
    again = _follow(store.upload_link(blob, expires_in=LIVES), content)
    if again.status == 412 or isinstance(store, ServedStore):
        yield "create if absent", True, "what is stored is not written over", ""
    else:
        hint = "nothing to set: every link binds its bytes, and the database decides what counts"
        yield "create if absent", None, f"the store writes again: {_said(again)}", hint
    link = store.download_link(blob, expires_in=LIVES)
    whole = _follow(link)
    good = whole.status == 200 and whole.body == content
    yield "GET", good, _said(whole) if whole.status != 200 or good else "other bytes came back", _hint(whole, good)
    part = _follow(link, range_header="bytes=100-299")
    good = part.status == 206 and part.body == content[100:300]
    hint = "" if good else "interrupted downloads cannot go on: a proxy before the store must let Range through"
    yield "Range", good, _said(part), hint
    changed = Link(digest=link.digest, size_bytes=link.size_bytes, url=_tampered(link.url), method=link.method)
    refused = _follow(changed).status in (400, 401, 403)
    if refused:
        yield "signatures", True, "a changed link is refused", ""
    else:
        hint = "the bucket is readable without a signature: close it, unless nobody else reaches the store"
        yield "signatures", None, "a changed link is answered", hint


def _parts(store: BlobStore) -> Iterator[Step]:
    from registry.storage.parts import TriesParts

    if not isinstance(store, TriesParts):
        return
    with store.part_link(expires_in=LIVES) as url:
        blob = Blob(digest=Digest.of(b"part"), size_bytes=4)
        answer = _follow(Link(digest=blob.digest, size_bytes=4, url=url, method="PUT"), b"part")
    good = answer.status == 200
    yield "part", good, _said(answer), "" if good else "the registry needs what deploy/s3-policy.json allows"


def _follow(link: Link, body: bytes | None = None, *, range_header: str | None = None) -> Answer:
    request = urllib.request.Request(link.url, data=body, method=link.method, headers=dict(link.headers))
    if body is not None:
        request.add_header("content-type", "application/octet-stream")
    if range_header is not None:
        request.add_header("range", range_header)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as reply:
            return Answer(reply.status, reply.read(2 * SIZE_BYTES), reply.headers.get("date"))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read(4096), error.headers.get("date"))
    except (OSError, ValueError) as error:
        return Answer(0, str(error).encode())


def _said(answer: Answer) -> str:
    if answer.status == 0:
        return f"no answer: {answer.body.decode()}"
    if answer.status >= 400:
        return f"{answer.status}: {answer.body[:200].decode(errors='replace')}"
    return f"answered {answer.status}"


def _hint(answer: Answer, good: bool = False) -> str:
    if good:
        return ""
    if answer.status == 0:
        return "clients must reach the endpoint of AOT_BLOB_URL: its name is in every link"
    if answer.status in (401, 403):
        return "compare clocks, keys and region; the registry's credentials need GetObject and PutObject"
    return "look at the answer; a proxy before the store must leave headers and paths as they are"


def _tampered(url: str) -> str:
    head, _, last = url.rpartition("=")
    return f"{head}={'0' * len(last)}"
