"""What has to wait until the registry has hashed an upload: blobs that came in parts, and others where the store
does not compare digests itself."""

import time
from collections.abc import Callable
from typing import TypeVar

from aot.errors import BlobPending
from aot.pipeline.source import raise_if_stopped
from aot.sandbox import ShouldStop

T = TypeVar("T")
# 20 GiB are hashed in minutes, and others may be first.
PENDING_SECONDS, PENDING_PAUSE, STOP_PAUSE = 1800.0, 2.0, 0.2


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
