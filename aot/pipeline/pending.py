"""What has to wait until the registry has hashed an upload: blobs that came in parts, and others where the store
does not compare digests itself; and until it no longer removes or moves one, which nobody may open meanwhile. And what
has to be uploaded again."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from aot.client import RegistryClient
from aot.errors import BlobMissing, BlobPending
from aot.pipeline.source import raise_if_stopped
from aot.sandbox import ShouldStop
from aot.schema.digest import Digest
from aot.schema.names import Namespace
from aot.schema.spec import Blob

T = TypeVar("T")
MOST_UPLOADS = 3
# Whether to go on is asked between groups of so many uploads.
UPLOADS_AT_ONCE = 8
# 20 GiB are hashed in minutes, and others may be first.
PENDING_SECONDS, PENDING_PAUSE, STOP_PAUSE = 1800.0, 2.0, 0.2
# A terabyte takes hours: so much is hashed though a store is slow and others wait. A claim's token works no longer.
HASHED_BYTES_PER_SECOND, LONGEST_PENDING = 16 << 20, 86400.0


def after_upload(upload: Callable[[], None], send: Callable[[], T], *, ours: Collection[Digest]) -> T:
    """`upload`, and return what `send` returns; both again where some of `ours`, and nothing else, got lost meanwhile.

    What nobody had confirmed for long may be removed at the moment when it is asked for again. Raises BlobMissing after
    MOST_UPLOADS.
    """
    for left in reversed(range(MOST_UPLOADS)):
        upload()
        try:
            return while_pending(send)
        except BlobMissing as error:
            missing = set(error.details.get("digests", ()))
            if not left or not missing or not missing <= set(ours):
                raise
    raise AssertionError("the last one returns or raises")


def while_pending(send: Callable[[], T], *, should_stop: ShouldStop = lambda: None) -> T:
    """Return what `send` returns, again and again while it raises BlobPending, for PENDING_SECONDS.

    And as long as what the registry says that it has to hash takes besides. Raises CompileStopped with the text of
    `should_stop`.
    """
    begun, allowed = time.monotonic(), PENDING_SECONDS
    while True:
        raise_if_stopped(should_stop)
        try:
            return send()
        except BlobPending as error:
            allowed = max(allowed, min(PENDING_SECONDS + _hashing_seconds(error), LONGEST_PENDING))
            if time.monotonic() - begun > allowed:
                raise
        again = time.monotonic() + PENDING_PAUSE
        while time.monotonic() < again and not should_stop():
            time.sleep(STOP_PAUSE)


def _hashing_seconds(error: BlobPending) -> float:
    """Of what is hashed still; a registry that does not tell, and nonsense, count as nothing."""
    told = error.details.get("size_bytes")
    if not isinstance(told, int) or told <= 0:
        return 0.0
    return min(told, LONGEST_PENDING * HASHED_BYTES_PER_SECOND) / HASHED_BYTES_PER_SECOND  # no float holds any int


def upload(
    client: RegistryClient,
    namespace: Namespace,
    blobs: Iterable[Blob],
    files: Mapping[Digest, Path],
    *,
    leave: bool = False,
    should_stop: ShouldStop = lambda: None,
) -> None:
    """Open the uploads of `blobs` and put what the registry lacks, waiting where a blob is pending.

    `leave`: what has no file is left out, else InvalidSource. Raises CompileStopped with the text of `should_stop`.
    """
    wanted = tuple(blobs)
    links = while_pending(lambda: client.open_uploads(namespace, wanted), should_stop=should_stop)
    if leave:
        links = tuple(link for link in links if link.digest in files)
    for first in range(0, len(links), UPLOADS_AT_ONCE):
        some = links[first : first + UPLOADS_AT_ONCE]
        # It opens an upload again where a link has expired. What has arrived is not taken twice.
        while_pending(partial(client.upload_blobs, some, files, namespace=namespace), should_stop=should_stop)
