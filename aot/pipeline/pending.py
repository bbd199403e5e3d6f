"""What has to wait until the registry has hashed an upload: blobs that came in parts, and others where the store
does not compare digests itself. And what has to be uploaded again."""

import time
from collections.abc import Callable, Collection
from typing import TypeVar

from aot.errors import BlobMissing, BlobPending
from aot.pipeline.source import raise_if_stopped
from aot.sandbox import ShouldStop
from aot.schema.digest import Digest

T = TypeVar("T")
MOST_UPLOADS = 3
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
