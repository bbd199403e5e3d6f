"""fsck: every stored blob is read and hashed again; what differs or is missing is taken out with what needs it.

    blob       missing, or other bytes twice in a row: every bundle that names it is out of selection with the reason,
               its wrong bytes are removed, and it waits for the right ones (`registry.services.damage`)
    bundle     whose manifest's bytes are not those of its digest, or whose signature no key of ours made: reported
    record     missing in the object store, not signed by a key of ours, or saying something else: written again,
               unless it is the row that is behind (`registry.services.behind`): told, for `reindex` to mend
    index      of a bundle's guards, where it lacks some: made whole

Where the first blobs are all missing and nothing could be read, it is the store that is not the right one: another
bucket, a directory that is not mounted. Then nothing is taken out.

Runs beside everything else; reads each blob whole, so it takes as long as the store takes to be read.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy.orm import Session

from aot.errors import AotError, BlobNotFound, MalformedDocument, StorageUnavailable, Unavailable
from aot.schema.digest import Digest
from aot.schema.manifest import decode_manifest
from aot.trust import TrustedKeys, verify
from registry.db import damage as rows
from registry.db import records as record_rows
from registry.db.bundles import find_bundle
from registry.db.models import BundleRow, TagRow
from registry.db.session import add_if_absent, tried_again
from registry.db.tags import find_tag
from registry.deps import Deps
from registry.services import behind, damage, guards, records
from registry.services.records import BundleRecord, TagRecord

AT_ONCE = 200
CHUNK_BYTES = 1 << 20
# So many missing blobs, and none read before them, are the store's fault.
MOST_MISSING = 20
BEHIND = "its record says that it was withdrawn: the database is of before that, and `reindex` brings it up to date"
_Found = TypeVar("_Found", rows.StoredBlob, BundleRow, TagRow)
log = structlog.get_logger()


@dataclass
class Checked:
    """What was read, and what was wrong with it."""

    blobs: int = 0
    read_blobs: int = 0
    read_bytes: int = 0
    bundles: int = 0
    damaged_blobs: dict[Digest, str] = field(default_factory=dict)
    damaged_bundles: dict[Digest, str] = field(default_factory=dict)
    suspect_bundles: dict[Digest, str] = field(default_factory=dict)
    healed_bundles: tuple[Digest, ...] = ()
    rewritten_records: int = 0
    later_records: list[str] = field(default_factory=list)  # of tags whose rows are behind them
    indexed_bundles: int = 0  # whose guards could not all be found

    @property
    def sound(self) -> bool:
        return not (self.damaged_blobs or self.damaged_bundles or self.suspect_bundles)


def fsck(deps: Deps, *, trusted: TrustedKeys, force: bool = False) -> Checked:
    """One pass over everything. `trusted`: keys that signed once and whose files are not here any more.

    `force`: take out what is missing also where nothing can be read. Raises StorageUnavailable when database or store
    cannot tell, what was found until then is in quarantine already; and without `force` for a store that lacks the
    first MOST_MISSING blobs, with nothing changed by that.
    """
    checked = Checked()
    checked.healed_bundles = tried_again(lambda: damage.heal(deps))
    _check_blobs(deps, checked, force=force)
    _check_bundles(deps, checked, keys=trusted | records.own_keys(deps))
    log.info("fsck", blobs=checked.blobs, bundles=checked.bundles, damaged=sorted(checked.damaged_blobs))
    return checked


def _check_blobs(deps: Deps, checked: Checked, *, force: bool) -> None:
    faults: dict[rows.StoredBlob, str] = {}  # held back until one blob was read
    for blob in _every(deps, rows.stored_blobs):
        checked.blobs += 1
        if reason := _fault(blob, deps, checked):
            faults[blob] = reason
        if force or checked.read_blobs:
            _quarantine_all(faults, deps, checked)
        elif len(faults) == MOST_MISSING:
            raise StorageUnavailable(
                f"the object store lacks the first {MOST_MISSING} blobs, {min(faults).digest} among them; "
                "none could be read",
                hint="is AOT_BLOB_URL the right bucket and prefix, or the directory mounted? "
                "Nothing was taken out; where they are really gone: `fsck --force`",
            )
    _quarantine_all(faults, deps, checked)


def _quarantine_all(faults: dict[rows.StoredBlob, str], deps: Deps, checked: Checked) -> None:
    """Leaves `faults` empty."""
    while faults:
        blob = next(iter(faults))
        _quarantine(blob, faults.pop(blob), deps, checked)


def _every(
    deps: Deps, read: Callable[..., Sequence[_Found]], *, key: Callable[[Any], Any] = lambda found: found.digest
) -> Iterator[_Found]:
    """All that `read` finds, in the order of `key`, page after page: no view of the database is held meanwhile."""
    after: Any = None
    while True:
        with deps.sessions.reading() as session:
            page = read(session, after=after, limit=AT_ONCE)
        if not page:
            return
        yield from page
        after = key(page[-1])


def _fault(blob: rows.StoredBlob, deps: Deps, checked: Checked) -> str:
    """Why the blob is not what it should be, empty where it is."""
    first_read = True
    for _ in range(2):  # once more: a bad read is not a bad blob
        found = _hash(blob.digest, deps)
        if found is None:
            fault = f"the object store lacks {blob.digest}"
            continue
        size, digest = found
        checked.read_bytes += size
        checked.read_blobs += first_read
        first_read = False
        if digest == blob.digest and size == blob.size_bytes:
            return ""
        fault = f"the object store holds other bytes for {blob.digest}: {size} of {blob.size_bytes} bytes, {digest}"
    return fault


def _hash(digest: Digest, deps: Deps) -> tuple[int, Digest] | None:
    running, size = hashlib.sha256(), 0
    try:
        with deps.store.open(digest) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                running.update(chunk)
                size += len(chunk)
    except BlobNotFound:
        return None
    return size, Digest("sha256:" + running.hexdigest())


def _quarantine(blob: rows.StoredBlob, reason: str, deps: Deps, checked: Checked) -> None:
    # None: what retention has deleted meanwhile is not missing.
    bundles = damage.quarantine(blob, reason=reason, deps=deps)
    if bundles is None:
        return
    log.error("blob-damaged", digest=blob.digest, reason=reason, bundles=bundles)
    checked.damaged_blobs[blob.digest] = reason
    checked.damaged_bundles |= dict.fromkeys(bundles, reason)


def _check_bundles(deps: Deps, checked: Checked, *, keys: TrustedKeys) -> None:
    for row in _every(deps, rows.signed_bundles):
        checked.bundles += 1
        if row.damage is not None:
            checked.damaged_bundles[row.digest] = row.damage
        if reason := _suspicion(row, keys=keys):
            # Its record stays as it is: that one may be right.
            checked.suspect_bundles[row.digest] = reason
            continue
        checked.indexed_bundles += tried_again(partial(_index, row, deps))
        if (record := _record_of(row, deps, keys=keys)) == records.bundle_record(row):
            continue
        if tried_again(partial(_is_bundle_behind, row, record, deps)):
            checked.suspect_bundles[row.digest] = BEHIND
    for tag in _every(deps, rows.tags_after, key=lambda row: (row.namespace, row.name, row.tag, row.profile)):
        if (told := _tag_record_of(tag, deps, keys=keys)) == records.tag_record(tag):
            continue
        if tried_again(partial(_is_tag_behind, tag, told, deps)):
            checked.later_records.append(records.tag_name(tag))
    while written := records.write_due(deps):
        checked.rewritten_records += written


def _is_bundle_behind(row: BundleRow, record: BundleRecord | None, deps: Deps) -> bool:
    """Whether the bundle is behind its record; where it is not, its record is due from now on."""
    with deps.sessions.transaction() as session:
        if record is not None and _is_bundle_still(row, record, session):
            return True
        record_rows.forget_bundle_recorded(row.digest, session=session)
    return False


def _is_tag_behind(tag: TagRow, record: TagRecord | None, deps: Deps) -> bool:
    with deps.sessions.transaction() as session:
        if record is not None and _is_tag_still(tag, record, session):
            return True
        record_rows.forget_tag_recorded(tag, session=session)
    return False


def _index(row: BundleRow, deps: Deps) -> bool:
    """True where the index lacked guards of the bundle, which are there now."""
    try:
        manifest = decode_manifest(row.manifest)
    except MalformedDocument:
        return False  # a newer version's: it indexes by itself
    with deps.sessions.reading() as session:
        lacking = guards.lacking_rows(row.digest, manifest, session)
    for guard in lacking:
        with deps.sessions.transaction() as session:
            add_if_absent(guard, session)
    return bool(lacking)


def _record_of(row: BundleRow, deps: Deps, *, keys: TrustedKeys) -> BundleRecord | None:
    """None where there is none that a key of ours signed."""
    try:
        content = deps.records.find(records.bundle_name(row.digest))
        return None if content is None else records.read_bundle(content, keys=keys)
    except Unavailable:
        raise
    except AotError:
        return None


def _tag_record_of(row: TagRow, deps: Deps, *, keys: TrustedKeys) -> TagRecord | None:
    try:
        content = deps.records.find(records.tag_name(row))
        return None if content is None else records.read_tag(content, keys=keys)
    except Unavailable:
        raise
    except AotError:
        return None


def _is_bundle_still(row: BundleRow, record: BundleRecord, session: Session) -> bool:
    """Whether the bundle is behind its record; as it is now, since it may have been withdrawn after it was read."""
    now = find_bundle(row.digest, session)
    return now is not None and behind.is_bundle_behind(now, record)


def _is_tag_still(row: TagRow, record: TagRecord, session: Session) -> bool:
    now = find_tag((row.namespace, row.name, row.tag, row.profile), session)
    return now is not None and behind.is_tag_behind(now, record)


def _suspicion(row: BundleRow, *, keys: TrustedKeys) -> str:
    if Digest.of(row.manifest) != row.digest:
        return "its manifest's bytes in the database are not those of its digest"
    if row.envelope is None:
        return "it is visible and not signed"
    try:
        verify(
            row.envelope,
            keys,
            manifest=row.digest,
            namespace=row.namespace,
            name=row.name,
            build_key=row.build_key,
        )
    except AotError as error:
        return error.message
    return ""
