"""Blobs on the wire: links, never bytes."""

from aot.schema.codec import Document, Response
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob

# 8 Mbit/s. Time is allowed for a line that carries so much, be it one of gigabytes: links live, and transfers are
# tried again, for what the bytes take at this pace.
SLOWEST_BYTES_PER_SECOND = 1 << 20


class Part(Response, kw_only=True):
    """Where a stretch of a blob is put: its bytes from `start` on, `size_bytes` of them."""

    start: int
    size_bytes: int
    url: str
    headers: dict[str, str] = {}


class Link(Response, kw_only=True):
    """Where one blob is put or got: a URL that expires, and the headers that must go with it.

    `parts`: a blob too large for one request is put by them, in any order; `url` is empty then. They are those that
    the store still lacks.
    """

    digest: Digest
    size_bytes: int
    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    parts: tuple[Part, ...] = ()


class OpenUploadsRequest(Document, kw_only=True):
    """Ask which of these the namespace lacks, and for links to put them."""

    namespace: Namespace
    blobs: tuple[Blob, ...]


class LinksReply(Response, kw_only=True):
    """For uploads: only what is missing. For downloads: every blob asked for."""

    links: tuple[Link, ...]


class DownloadLinksRequest(Document, kw_only=True):
    digests: tuple[Digest, ...] = ()  # empty: every blob of the bundle
