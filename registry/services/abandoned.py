"""Uploads in parts that nobody goes on with: their parts cost space, and no listing of objects shows them."""

from itertools import islice

import structlog

from registry.db import blobs as rows
from registry.deps import Deps
from registry.storage.parts import PartUpload, TakesParts

AT_ONCE = 500
log = structlog.get_logger()


def abandoned_uploads(deps: Deps) -> tuple[PartUpload, ...]:
    """The uploads in parts that were begun, and last asked for, before the grace period. Raises StorageUnavailable."""
    if not isinstance(deps.store, TakesParts):
        return ()
    before = deps.clock() - deps.settings.grace_of_blobs
    old = (upload for upload in deps.store.part_uploads() if upload.begun_at < before)
    found: list[PartUpload] = []
    while some := tuple(islice(old, AT_ONCE)):
        with deps.sessions.reading() as session:
            wanted = rows.opened_since((upload.digest for upload in some), since=before, session=session)
        found += [upload for upload in some if upload.digest not in wanted]
    return tuple(found)


def give_up_abandoned(deps: Deps) -> int:
    """Remove their parts; return how many uploads that were. Raises StorageUnavailable."""
    uploads = abandoned_uploads(deps)
    for upload in uploads:
        assert isinstance(deps.store, TakesParts)
        deps.store.give_up(upload)
    if uploads:
        log.info("uploads-given-up", digests=[upload.digest for upload in uploads])
    return len(uploads)
