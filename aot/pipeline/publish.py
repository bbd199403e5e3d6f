"""Publish: the back half of the first flow. Bytes first, the manifest that makes them visible last."""

import time
from collections.abc import Callable, Sequence

from aot.client import RegistryClient
from aot.errors import BlobPending
from aot.pipeline.build import Staged
from aot.pipeline.source import raise_if_stopped
from aot.sandbox import OnEvent, ShouldStop
from aot.schema.names import Tag
from aot.schema.wire.bundles import PublishReply

PENDING_SECONDS, PENDING_PAUSE, STOP_PAUSE = 600.0, 2.0, 0.2
# Whether to go on is asked between groups of so many uploads.
UPLOADS_AT_ONCE = 8


def publish_bundle(
    client: RegistryClient,
    staged: Staged,
    *,
    build: str,
    on_event: OnEvent = lambda event: None,
    should_stop: ShouldStop = lambda: None,
) -> PublishReply:
    """Upload the blobs that the namespace lacks, then publish with the token of the attempt. Safe to repeat.

    Raises LeaseLost, BlobMissing, Forbidden, Unavailable, and CompileStopped with the text of `should_stop`.
    """
    upload_bundle(client, staged, should_stop=should_stop)
    on_event({"phase": "publishing"})
    return _while_pending(lambda: client.publish(build, staged.manifest_text), should_stop=should_stop)


def push_bundle(client: RegistryClient, staged: Staged, *, tags: Sequence[Tag] = ()) -> PublishReply:
    """Upload a bundle that was built elsewhere; it stays pending until a fitting worker has proven it again."""
    upload_bundle(client, staged)
    return _while_pending(lambda: client.push(staged.manifest_text, tags=tuple(tags)))


def upload_bundle(client: RegistryClient, staged: Staged, *, should_stop: ShouldStop = lambda: None) -> None:
    """Make true that the registry holds every blob of the bundle. What is there already is not sent again."""
    raise_if_stopped(should_stop)
    links = client.open_uploads(staged.manifest.namespace, staged.manifest.blobs)
    for first in range(0, len(links), UPLOADS_AT_ONCE):
        raise_if_stopped(should_stop)
        client.upload_blobs(links[first : first + UPLOADS_AT_ONCE], staged.paths)


def _while_pending(send: Callable[[], PublishReply], *, should_stop: ShouldStop = lambda: None) -> PublishReply:
    # The registry hashes large uploads itself before it lets them be published.
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
