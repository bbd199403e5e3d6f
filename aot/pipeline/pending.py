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

    Raises CompileStopped with the text of `should_stop`.
    """
    deadline = time.monotonic() + PENDING_SECONDS
    while True:
        raise_if_stopped(should_stop)
        try:
            return send()
        except BlobPending:
            if time.monotonic() > deadline:
                raise
        again = time.monotonic() + PENDING_PAUSE
        while time.monotonic() < again and not should_stop():
            time.sleep(STOP_PAUSE)


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
