"""`pull` on a node whose cache cannot be written, as an image's layer: all that it wants is there, or it fails.

Beside `aot.runtime.fetch`, for `pull` alone: `load` goes on without what it cannot note down.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aot.errors import AotError, InvalidConfig, LocalStorageFull
from aot.runtime.fetch import Candidate, Resolved, ensure_blobs, remember, verify_signed
from aot.schema.spec import Blob

if TYPE_CHECKING:
    from aot.cache import LocalCache
    from aot.runtime.fetch import Registry
    from aot.trust import TrustedKeys

log = logging.getLogger("aot")


def remember_unless_known(resolved: Resolved, *, cache: "LocalCache", trusted: "TrustedKeys") -> bool:
    """Make true that the node can resolve this again without the registry. False: it could, and nothing was written.

    Raises LocalStorageFull, InvalidConfig where it could not, and nothing can be written.
    """
    try:
        remember(resolved, cache)
    except (LocalStorageFull, InvalidConfig) as error:
        if not _is_known(resolved, cache, trusted):
            raise
        log.warning("aot uses what the cache has of %s as it is: %s", resolved.reference, error.message)
        return False
    return True


def ensure_pulled(
    candidate: Candidate, wanted: Iterable[Blob], *, client: "Registry | None", cache: "LocalCache", hashed: bool
) -> None:
    """Make true that these blobs of the bundle lie in the cache, and with `hashed` that they are whole.

    For a cache that cannot be written: what is damaged in it stays so. Raises Unavailable, IntegrityFailed,
    LocalStorageFull, InvalidConfig.
    """
    blobs = tuple(wanted)
    ensure_blobs(candidate, blobs, client=client, cache=cache)
    for blob in blobs if hashed else ():
        cache.verified_path(blob.digest)


def _is_known(resolved: Resolved, cache: "LocalCache", trusted: "TrustedKeys") -> bool:
    """Whether the cache alone stands for the same bundles, each signed."""
    tag = None if resolved.pinned else cache.recall_tag(resolved.reference)
    known = resolved.pinned or (tag is not None and set(tag.bundles) == {one.digest for one in resolved.candidates})
    return known and all(_is_signed(one, resolved, cache, trusted) for one in resolved.candidates)


def _is_signed(candidate: Candidate, resolved: Resolved, cache: "LocalCache", trusted: "TrustedKeys") -> bool:
    signed = cache.get_manifest(candidate.digest)
    try:
        key = candidate.manifest.build_key
        return signed is not None and bool(verify_signed(signed, resolved.reference, trusted, build_key=key))
    except AotError:
        return False
