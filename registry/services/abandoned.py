"""Uploads that nobody goes on with, and what arrived and became no blob: they cost space, and no row names them."""

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.names import Namespace
from registry.db import blobs as rows
from registry.db import held as held_rows
from registry.deps import Deps
from registry.services import holding
from registry.storage import BlobStore
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
        unwanted += [one for one in some if not _is_among(one, wanted)]
    return tuple(unwanted)


def give_up_abandoned(deps: Deps, *, seconds: float = math.inf) -> tuple[int, bool]:
    """Remove what nobody wants by now either; return how many, and whether some are left for want of time.

    The `seconds` begin once it is known what there is; one is looked at in any case. Raises StorageUnavailable.
    """
    found = find_abandoned(deps)
    until = time.monotonic() + seconds
    given_up: list[Digest] = []
    left = [*reversed(found.arrivals), *reversed(found.uploads)]
    while left:
        one = left.pop()
        if _give_up(one, deps):
            given_up.append(one.digest)
        if time.monotonic() >= until:
            break
    if given_up:
        log.info("uploads-given-up", digests=given_up)
    return len(given_up), bool(left)


def _give_up(one: PartUpload | Arrival, deps: Deps) -> bool:
    """False where a namespace has asked for the blob since it was found, or has put another version.

    The blob is held meanwhile, and its row made where there is none: whoever opens the upload comes before, and is seen
    here, or is told to come again, and sees that nothing has arrived.
    """
    now = deps.clock()
    since = now - deps.settings.grace_of_blobs

    def wanted(session: Session) -> bool:
        return _is_among(one, rows.lately_wanted((one.digest,), since=since, session=session))

    hold = partial(held_rows.hold, one.digest, now=now, unless=wanted)
    with holding.held(one.digest, hold, sessions=deps.sessions) as held:
        return held is not None and _remove(one, deps.store)


def _remove(one: PartUpload | Arrival, store: BlobStore) -> bool:
    assert isinstance(store, KeepsIncoming)
    if isinstance(one, PartUpload):
        store.give_up(one)
        return True
    return store.incoming_of(one.namespace).discard(one.digest, version=one.version)


def _is_among(one: PartUpload | Arrival, wanted: Collection[tuple[Digest, Namespace]]) -> bool:
    if one.namespace is None:  # it may be anybody's: an older registry's, or a copy into place
        return any(digest == one.digest for digest, _ in wanted)
    return (one.digest, one.namespace) in wanted
