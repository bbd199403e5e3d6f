"""Publish: the back half of the first flow. Bytes first, the manifest that makes them visible last."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.client import RegistryClient
from aot.errors import BlobPending
from aot.pipeline.build import Staged
from aot.schema.names import Tag
from aot.schema.wire.bundles import PublishReply

PENDING_SECONDS, PENDING_PAUSE = 600.0, 2.0


def publish_bundle(
    client: RegistryClient,
    staged: Staged,
    *,
    build: str,
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None,
) -> PublishReply:
    """Upload the blobs that the namespace lacks, then publish with the token of the attempt. Safe to repeat.

    Raises LeaseLost, BlobMissing, Forbidden, Unavailable.
    """
    upload_bundle(client, staged)
    on_event({"phase": "publishing"})
    return _while_pending(lambda: client.publish(build, staged.manifest_text))


def push_bundle(client: RegistryClient, staged: Staged, *, tags: Sequence[Tag] = ()) -> PublishReply:
    """Upload a bundle that was built elsewhere; it stays pending until a fitting worker has proven it again."""
    upload_bundle(client, staged)
    return _while_pending(lambda: client.push(staged.manifest_text, tags=tuple(tags)))


def upload_bundle(client: RegistryClient, staged: Staged) -> None:
    """Make true that the registry holds every blob of the bundle."""
    links = client.open_uploads(staged.manifest.namespace, staged.manifest.blobs)
    client.upload_blobs(links, staged.paths)


def _while_pending(send: Callable[[], PublishReply]) -> PublishReply:
    # The registry hashes large uploads itself before it lets them be published.
    deadline = time.monotonic() + PENDING_SECONDS
    while True:
        try:
            return send()
        except BlobPending:
            if time.monotonic() > deadline:
                raise
            time.sleep(PENDING_PAUSE)
