"""What came to a place of its namespace (`registry.storage.parts`) becomes a blob once it was hashed here.

    put by a namespace → hashed → right: copied to where blobs are, the blob is stored, for every namespace
                                → wrong twice in a row: removed, and nobody else's upload with it

Each step may be done twice: whoever is slow copies the same bytes, or finds that what it has read is gone. Where the
store may copy other bytes than were hashed (`KeepsIncoming.binds_copies`), only one copies at a time, and only to where
nothing is; the blob stays pending until its copy was hashed too.
"""

import time
from contextlib import suppress
from functools import partial

import structlog

from aot.errors import BlobNotFound, BlobPending
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from registry.db import blobs as rows
from registry.db import held as held_rows
from registry.deps import Deps
from registry.services import blobs, holding
from registry.storage.parts import Arrival, Incoming, KeepsIncoming, comes_in_parts, incoming_for

log = structlog.get_logger()


def complete(blob: Blob, deps: Deps) -> tuple[Arrival, ...]:
    """Make the blob of its parts in every place where all are there: its client may be gone. Returns these.

    What takes the store longer is for the next pass.
    """
    if not comes_in_parts(blob, deps.store):
        return ()
    with deps.sessions.reading() as session:
        namespaces = rows.namespaces_of(blob.digest, session)
    whole = []
    for namespace in namespaces:
        incoming = incoming_for(blob, deps.store, namespace)
        with suppress(BlobPending):
            if incoming is not None and incoming.complete(blob) is not None:
                whole.append(Arrival(digest=blob.digest, namespace=namespace, arrived_at=deps.clock()))
    return tuple(whole)


def settle_arrival(arrival: Arrival, deps: Deps, *, seconds: float) -> bool:
    """Hash what has arrived, for so many seconds, and adopt it. True when the blob is stored now.

    What another namespace's bytes have made a blob already is left to retention.
    """
    assert isinstance(deps.store, KeepsIncoming)
    until = time.monotonic() + seconds
    incoming, key = deps.store.incoming_of(arrival.namespace), (arrival.namespace, arrival.digest)
    with deps.sessions.reading() as session:
        seen = rows.find_pending(arrival.digest, session)
    if seen is None:
        deps.hashing.forget(key)
        return False
    if not deps.store.binds_copies and deps.store.stat(arrival.digest) is not None:
        return _settle_copy(arrival.digest, deps, seconds=seconds)
    try:
        hashed = deps.hashing.hash(key, arrival.digest, lambda: incoming.open(arrival.digest), seconds=seconds)
    except BlobNotFound:
        return False  # another has adopted or removed it meanwhile
    keep = partial(_keep_open, arrival, key, deps)
    if hashed is None:
        return keep()
    if hashed.hex != arrival.digest.hex:
        deps.hashing.forget(key)
        log.warning("upload-with-other-bytes", digest=arrival.digest, namespace=arrival.namespace, found=hashed.hex)
        incoming.discard(arrival.digest, version=hashed.version)
        return False
    blob = Blob(digest=arrival.digest, size_bytes=hashed.size_bytes)
    if deps.store.binds_copies:
        done = _adopt(blob, incoming, deps, version=hashed.version, seconds=seconds)
    else:
        done = _adopt_alone(blob, seen, incoming, deps, version=hashed.version, seconds=seconds)
    if done is None:
        return keep()
    deps.hashing.forget(key)
    if not done:
        return False
    stored = (deps.store.binds_copies and _mark(blob, seen, deps)) or _settle_copy(
        arrival.digest, deps, seconds=until - time.monotonic()
    )
    if stored:  # until then it is all that there is: others may have removed the copy as one of wrong bytes
        incoming.discard(arrival.digest, version=hashed.version)
    return stored


def _keep_open(arrival: Arrival, key: tuple[str, ...], deps: Deps) -> bool:
    """False: it is for the next pass, and given up by nobody until then."""
    there = {"sessions": deps.sessions, "clock": deps.clock, "namespace": arrival.namespace}
    blobs.keep_open(arrival.digest, key, deps.hashing, **there)
    return False


def _adopt(blob: Blob, incoming: Incoming, deps: Deps, *, version: str, seconds: float) -> bool | None:
    """As `Incoming.adopt`; a copy of another size than was hashed is none."""
    done = incoming.adopt(blob, version=version, seconds=seconds)
    return done if not done else deps.store.stat(blob.digest) == blob.size_bytes


def _adopt_alone(
    blob: Blob, seen: rows.PendingBlob, incoming: Incoming, deps: Deps, *, version: str, seconds: float
) -> bool | None:
    """As `_adopt`, where nobody has stored or replaced the blob since it was seen; False where somebody has."""
    # What nobody compares must not be written over what is proven: nobody stores the blob while the store copies.
    hold = partial(held_rows.hold_pending, seen, now=deps.clock(), copied=blob)
    with holding.held(blob.digest, hold, sessions=deps.sessions) as held:
        return held is not None and _adopt(blob, incoming, deps, version=version, seconds=seconds)


def _mark(blob: Blob, seen: rows.PendingBlob, deps: Deps) -> bool:
    with deps.sessions.transaction() as session:
        if rows.mark_hashed(blob, seen, now=deps.clock(), session=session):
            return True
        # Retention may have forgotten the blob while it was copied: what nobody knows of, nobody removes.
        rows.account_for(blob, now=deps.clock(), session=session)
        return False


def _settle_copy(digest: Digest, deps: Deps, *, seconds: float) -> bool:
    blob = Blob(digest=digest, size_bytes=0)  # hashing tells its size
    there = {"store": deps.store, "sessions": deps.sessions, "clock": deps.clock, "hashing": deps.hashing}
    return blobs.settle_upload(blob, **there, seconds=seconds)
