"""The bytes themselves: put and got by links, streamed, resumed where a connection was cut.

Links carry their own right. No token goes with them, so a link may lead anywhere, and redirects are followed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from aot.client.calls import read_all
from aot.client.refusals import blob_error_of, through
from aot.client.retry import RetryPolicy, retried
from aot.client.transport import Reply, Transport
from aot.errors import (
    AotError,
    Forbidden,
    InvalidSource,
    LocalStorageFull,
    RegistryError,
    RegistryUnreachable,
    SizeMismatch,
    Unavailable,
)
from aot.schema.wire.blobs import SLOWEST_BYTES_PER_SECOND, Link

CHUNK_BYTES = 1 << 18
PLENTY_BYTES = 64 << 20
REDIRECTS = 3
ANSWER_LIMIT_BYTES = 1 << 20


class Sink(Protocol):
    """Where a blob's bytes go, in order."""

    def write(self, chunk: bytes) -> object: ...


# Another link to the same blob; None where there is none, or none is needed any more.
Renew = Callable[[Link], Link | None]


class TransferStopped(Exception):
    """Another blob of the same set failed, or the caller was interrupted: these bytes are not wanted any more."""


def never() -> bool:
    return False


def get_blob(
    transport: Transport,
    link: Link,
    into: Sink,
    *,
    limit_bytes: int,
    timeout_seconds: float,
    retry: RetryPolicy,
    stopped: Callable[[], bool] = never,
    renew: Renew | None = None,
) -> None:
    """Write the blob behind `link` into `into`: every byte once, in order, exactly `limit_bytes` of them.

    A cut connection is taken up where it ended. Which bytes arrive is for `into` to verify. `renew` gives another link
    where one has expired while other blobs, or the first bytes of this one, were on their way. Raises SizeMismatch,
    BlobNotFound, Forbidden (an expired link), and Unavailable when patience ends.
    """
    download = _Download(link, into, limit_bytes, stopped)
    rounds = failures = 0
    since = retry.now()
    while True:
        before = download.received
        try:
            with through(link):
                return download.attempt(transport, timeout_seconds)
        except Forbidden:
            if not download.is_renewed(renew):
                raise
            continue
        except LocalStorageFull:
            raise  # `into` holds a part of the chunk: written again, it would read as the store's fault
        except Unavailable as error:
            rounds += download.received - before < PLENTY_BYTES
            failures += 1
            if download.received > before:
                failures, since = 1, retry.now()
            wait = retry.wait_after(failures, error)
            # While bytes arrive in between, a bad line may fail more often than other requests; while many, for good.
            used_up = failures >= retry.attempts or rounds >= 4 * retry.attempts
            if used_up or retry.now() - since + wait > retry.budget_seconds:
                raise
        retry.sleep(wait)


class _Download:
    def __init__(self, link: Link, into: Sink, limit_bytes: int, stopped: Callable[[], bool]) -> None:
        self.received = 0
        self.link = link
        self._renewed_at: int | None = None
        self._into = into
        self._limit_bytes = limit_bytes
        self._stopped = stopped

    def attempt(self, transport: Transport, timeout_seconds: float) -> None:
        """Receive what is missing. Raises RegistryUnreachable when it ends early."""
        headers = dict(self.link.headers)
        if self.received:
            headers["range"] = f"bytes={self.received}-"
        reply = follow(transport, "GET", self.link, headers=headers, timeout_seconds=timeout_seconds)
        try:
            skip = self._check(reply)
            while chunk := reply.read(CHUNK_BYTES):
                if self._stopped():
                    raise TransferStopped
                skipped = min(skip, len(chunk))
                skip -= skipped
                self._take(chunk[skipped:])
        finally:
            reply.close()
        if self.received < self._limit_bytes:
            raise RegistryUnreachable(
                f"{self.link.digest} ended after {self.received} of {self._limit_bytes} bytes",
                hint="check the network",
            )

    def is_renewed(self, renew: Renew | None) -> bool:
        """Whether there is another link in place of one that was refused, with which bytes may arrive."""
        # One that is refused at once has not expired.
        if renew is None or self._renewed_at == self.received or (again := renew(self.link)) is None:
            return False
        self.link, self._renewed_at = again, self.received
        return True

    def _check(self, reply: Reply) -> int:
        """How many bytes of this body were received before. Raises what a refusal stands for."""
        found = reply.headers.get("content-range", "nothing")
        if reply.status == 206 and self.received and found.startswith(f"bytes {self.received}-"):
            return 0
        if reply.status == 200:
            length = reply.headers.get("content-length")
            if length is not None and length != str(self._limit_bytes):
                raise self._wrong_size(f"{length} bytes")
            return self.received  # a store without ranges begins again
        if reply.status in (206, 416):
            raise self._wrong_size(found)
        answer = read_all(reply, limit_bytes=ANSWER_LIMIT_BYTES)
        raise blob_error_of(reply, answer, wish=f"get {self.link.digest}")

    def _take(self, chunk: bytes) -> None:
        if self.received + len(chunk) > self._limit_bytes:
            raise self._wrong_size("more")
        self._into.write(chunk)
        self.received += len(chunk)

    def _wrong_size(self, found: str) -> SizeMismatch:
        return SizeMismatch(
            f"wanted {self._limit_bytes} bytes of {self.link.digest}, found {found}",
            hint="the store serves other bytes than the manifest names; do not use them",
        )


def put_blob(transport: Transport, link: Link, path: Path, *, timeout_seconds: float, retry: RetryPolicy) -> None:
    """Send the file at `path` to `link`; afterwards the store holds the blob, or every part of it.

    Raises SizeMismatch or DigestMismatch when the file is not what the link is for, Forbidden for an expired link,
    InvalidSource when the file cannot be read.
    """
    for stretch in stretches_of(link):
        put_stretch(transport, stretch, path, timeout_seconds=timeout_seconds, retry=retry)


@dataclass(frozen=True)
class Stretch:
    """What one request puts: a blob, or a part of one. `link` is where, with the size of the stretch."""

    whole: Link
    link: Link
    start: int


def stretches_of(link: Link) -> tuple[Stretch, ...]:
    if not link.parts:
        return (Stretch(link, link, 0),)
    return tuple(
        Stretch(
            link,
            Link(
                digest=link.digest, size_bytes=part.size_bytes, url=part.url, method=link.method, headers=part.headers
            ),
            part.start,
        )
        for part in link.parts
    )


def put_stretch(
    transport: Transport, stretch: Stretch, path: Path, *, timeout_seconds: float, retry: RetryPolicy
) -> None:
    """Send these bytes of the file at `path`. Raises as `put_blob`."""
    link = stretch.link
    headers = {**link.headers, "content-length": str(link.size_bytes), "content-type": "application/octet-stream"}

    def attempt() -> None:
        with _opened(path) as file:
            body = cast(BinaryIO, _Exactly(file, stretch, path))
            reply = follow(transport, "PUT", link, headers=headers, body=body, timeout_seconds=timeout_seconds)
        try:
            answer = read_all(reply, limit_bytes=ANSWER_LIMIT_BYTES)
        finally:
            reply.close()
        # 412: the link says "create if absent", and it is there already.
        if not (200 <= reply.status < 300 or reply.status == 412):
            raise blob_error_of(reply, answer, wish=f"put {link.digest}")

    with _opened(path) as file:
        size = file.seek(0, 2)
    if size != stretch.whole.size_bytes:
        raise _wrong_file(path, stretch.whole, size)
    # The budget is for waiting: what a line took for the bytes of an attempt that was cut is none of it.
    allowed = max(retry.budget_seconds, retry.attempts * link.size_bytes / SLOWEST_BYTES_PER_SECOND)
    with through(link):
        retried(attempt, replace(retry, budget_seconds=allowed), may_retry=lambda _: True)


def follow(
    transport: Transport,
    method: str,
    link: Link,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    body: BinaryIO | None = None,
) -> Reply:
    """The answer at the end of at most three redirects, none of them from https to http."""
    from urllib.parse import urljoin

    url = link.url
    for _ in range(REDIRECTS + 1):
        reply = transport.send(method, url, headers=headers, body=body, timeout_seconds=timeout_seconds)
        redirects = reply.status in (307, 308) or (reply.status in (301, 302, 303) and method == "GET")
        if not redirects or "location" not in reply.headers:
            return reply
        try:
            read_all(reply, limit_bytes=ANSWER_LIMIT_BYTES)  # so that the connection can be used again
        finally:
            reply.close()
        target = urljoin(url, reply.headers["location"])
        if url.startswith("https:") and not target.startswith("https:"):
            raise RegistryError(
                f"the link to {link.digest} redirects from https to {target[:100]}", hint="check the object store"
            )
        url = target
        if body is not None:
            body.seek(0)
    raise RegistryError(f"the link to {link.digest} redirects too often", hint="check the object store")


class _Exactly:
    """A file that must have exactly the stretch's bytes: more would run into the next request."""

    def __init__(self, file: BinaryIO, stretch: Stretch, path: Path) -> None:
        self._file = file
        self._stretch = stretch
        self._path = path
        self.seek(0)

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        chunk = self._file.read(wanted)
        if wanted and not chunk:
            raise _wrong_file(self._path, self._stretch.whole, self._file.tell())
        self._left -= len(chunk)
        return chunk

    def seek(self, offset: int) -> int:
        self._left = self._stretch.link.size_bytes - offset
        return self._file.seek(self._stretch.start + offset) - self._stretch.start


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidSource(f"could not read {path}: {error.strerror or error}", hint="see the file") from error


def _wrong_file(path: Path, link: Link, size: int) -> AotError:
    return SizeMismatch(
        f"{path} has {size} bytes, the link is for {link.size_bytes} bytes of {link.digest}",
        hint="the file changed; make its digest again",
    )
