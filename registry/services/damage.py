"""Damage: bundles whose bytes cannot be had are out of selection with the reason, until the right bytes are back.

A damaged blob is pending again, for every namespace, so that anybody who has the bytes may upload them. The sweeper
looks for such uploads (`heal`), hashes them whatever the store promises, and puts the bundles back.
"""

from collections.abc import Sequence

import structlog

from aot.schema.digest import Digest
from registry.db import blobs as blob_rows
from registry.db import damage as rows
from registry.deps import Deps
from registry.services import blobs

log = structlog.get_logger()


def of_missing(missing: Sequence[Digest]) -> str | None:
    """The reason, None for no damage."""
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"the object store lacks {missing[0]}{more}"


def quarantine(digest: Digest, *, reason: str, deps: Deps) -> tuple[Digest, ...] | None:
    """Take the blob out, and every bundle that names it; return these. None where it is not stored any more."""
    with deps.sessions.transaction() as session:
        if not rows.unstore(digest, session=session):
            return None
        return rows.damage_bundles(digest, reason=reason, session=session)


def heal(deps: Deps) -> tuple[Digest, ...]:
    """Put back the bundles whose bytes have been uploaded again; return them. Raises StorageUnavailable."""
    with deps.sessions.reading() as session:
        lacking = rows.lacking_blobs(session)
        damaged = rows.damaged_bundles(session)
    if not damaged:
        return ()
    for blob in lacking:
        found = blobs.hash_stored(blob, deps.store)
        if found is not None:
            with deps.sessions.transaction() as session:
                blob_rows.mark_stored(found, now=deps.clock(), session=session)
    with deps.sessions.transaction() as session:
        healed = rows.heal_bundles(session)
    if healed:
        log.info("bundles-healed", bundles=healed)
    return healed
