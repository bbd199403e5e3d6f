"""Uploads that nobody goes on with, and what arrived and became no blob: they cost space, and no row names them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import structlog

from registry.db import blobs as rows
from registry.deps import Deps
from registry.storage.parts import Arrival, KeepsIncoming, PartUpload

AT_ONCE = 500
T = TypeVar("T", Arrival, PartUpload)
log = structlog.get_logger()


@dataclass(frozen=True)
class Abandoned:
    uploads: tuple[PartUpload, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

    def __len__(self) -> int:
        return len(self.uploads) + len(self.arrivals)


def find_abandoned(deps: Deps) -> Abandoned:
    """What was begun or arrived before the grace period, of which its namespace has not asked for the blob since.

    Where the blob is stored meanwhile nobody goes on with it either. Raises StorageUnavailable.
    """
    if not isinstance(deps.store, KeepsIncoming):
        return Abandoned()
    uploads = _unwanted(deps.store.part_uploads(), lambda upload: upload.begun_at, deps)
    return Abandoned(uploads, _unwanted(deps.store.arrivals(), lambda arrival: arrival.arrived_at, deps))


def _unwanted(found: Iterable[T], since: Callable[[T], object], deps: Deps) -> tuple[T, ...]:
    before = deps.clock() - deps.settings.grace_of_blobs
    old = (one for one in found if since(one) < before)  # type: ignore[operator]
    unwanted: list[T] = []
    while some := tuple(islice(old, AT_ONCE)):
        with deps.sessions.reading() as session:
            wanted = rows.lately_wanted((one.digest for one in some), since=before, session=session)
        anybody = {digest for digest, _ in wanted}
        # Without a namespace it may be anybody's: an older registry's, or a copy into place.
        unwanted += [
            one
            for one in some
            if not (one.digest in anybody if one.namespace is None else (one.digest, one.namespace) in wanted)
        ]
    return tuple(unwanted)


def give_up_abandoned(deps: Deps) -> int:
    """Remove them; return how many there were. Raises StorageUnavailable."""
    found = find_abandoned(deps)
    for upload in found.uploads:
        assert isinstance(deps.store, KeepsIncoming)
        deps.store.give_up(upload)
    for arrival in found.arrivals:
        assert isinstance(deps.store, KeepsIncoming)
        deps.store.incoming_of(arrival.namespace).discard(arrival.digest)
    if len(found):
        log.info("uploads-given-up", digests=[one.digest for one in (*found.uploads, *found.arrivals)])
    return len(found)
