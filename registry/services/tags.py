"""Tags: movable names. A tag stands for one bundle a profile, so that one tag serves a fleet.

What a tag stands for stays. From the moment that it is moved away or removed, retention counts: in one transaction with
that, so that no sweeper finds a bundle without its tag and its last use a year ago.

Where it stands for code that was tuned on the card, code of the same key that was made without it does not take its
place for as long as that is live, whoever moves it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import BundleNotFound, BundleWithdrawn, Conflict, TagMoved, TagNotFound
from aot.schema.digest import BuildKey, Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.state import BundleState
from aot.schema.wire.bundles import TagRequest, TagView, UntagReply
from aot.schema.wire.workers import Scope
from registry.db import records as record_rows
from registry.db import tags as rows
from registry.db.bundles import find_bundle, hold_bundle, hold_bundles
from registry.db.models import BundleRow
from registry.db.retention import mark_used
from registry.services.answers import is_untuned
from registry.services.tokens import Principal

NOWHERE = Digest("sha256:" + "0" * 64)
"""As `expected`: the tag must not stand for anything yet."""


def move(
    namespace: Namespace,
    name: Name,
    tag: Tag,
    *,
    request: TagRequest,
    by: Principal,
    now: datetime,
    session: Session,
) -> TagView:
    """Let the tag stand for the bundle, for the bundle's profile; with `expected`, only from there.

    Raises Forbidden, BundleNotFound, BundleWithdrawn, Conflict for a bundle that is not live and for an untuned one in
    place of a tuned one, and TagMoved naming what the tag stands for.
    """
    by.require(Scope.TAG, namespace)
    bundle = find_bundle(request.bundle, session)
    if bundle is None or (bundle.namespace, bundle.name) != (namespace, name):
        raise BundleNotFound(f"there is no bundle {request.bundle} of {namespace}/{name}", hint="search for bundles")
    require_live(bundle)
    rows.take_turn(namespace, name, session)
    if request.expected is None:
        if not put(tag, bundle=bundle, now=now, session=session):
            raise _tuned_stays(tag, bundle)
    elif _goes_before(request.expected, bundle, session):
        raise _tuned_stays(tag, bundle)
    elif not moved(tag, bundle=bundle, expected=request.expected, now=now, session=session):
        row = rows.find_tag(_place(tag, bundle), session)
        found = row.bundle if row else None
        raise TagMoved(
            f"{namespace}/{name}:{tag} should stand for {request.expected}, it stands for {found}",
            hint="look at what it stands for now, and decide again",
            details={"found": found},
        )
    return TagView(
        reference=Reference(f"{namespace}/{name}:{tag}"),
        bundle=bundle.digest,
        profile=bundle.profile,
        moved_at=now,
    )


def remove(
    reference: Reference, *, expected: Digest | None, by: Principal, now: datetime, session: Session
) -> UntagReply:
    """Let the tag stand for nothing any more, whatever the profile; with `expected`, only where it stands for that.

    Raises Forbidden, TagNotFound, and TagMoved naming what the tag stands for.
    """
    by.require(Scope.TAG, reference.namespace)
    rows.take_turn(reference.namespace, reference.name, session)
    standing = rows.hold_tags(reference, session)
    if not standing:
        raise TagNotFound(f"there is no {reference}", hint="`aot ls` shows the tags of each bundle")
    going = [row for row in standing if expected in (None, row.bundle)]
    if not going:
        found = [row.bundle for row in standing]
        raise TagMoved(
            f"{reference} should stand for {expected}, it stands for {', '.join(found)}",
            hint="look at what it stands for now, and decide again",
            details={"found": found},
        )
    mark_used([row.bundle for row in going], now=now, session=session)
    record_rows.begin_forgetting_tags(going, now=now, session=session)
    for row in going:
        session.delete(row)
    removed = (
        TagView(reference=reference, bundle=row.bundle, profile=row.profile, moved_at=row.moved_at) for row in going
    )
    return UntagReply(removed=tuple(removed))


def put(tag: Tag, *, bundle: BundleRow, now: datetime, session: Session) -> bool:
    """Let the tag stand for `bundle`, wherever it stood; False where it stays with what was tuned.

    Raises BundleNotFound where the bundle has expired meanwhile.
    """
    place = _place(tag, bundle)
    if is_untuned(bundle):
        return _put_untuned(tag, place, bundle=bundle, now=now, session=session)
    _hold(bundle, session=session)
    while True:
        _leave(place, now=now, session=session)
        if rows.move_tag(place, bundle.digest, expected=None, now=now, session=session):
            return True
        if rows.insert_tag(place, bundle.digest, now=now, session=session):
            return True
        # Made by somebody else between the two statements: and may be removed by the next.


def hold(wanted: Sequence[Tag], *, bundle: BundleRow, also: Iterable[Digest] = (), session: Session) -> None:
    """Keep others off these tags, and what they stand for, before the first of several moves to `bundle`.

    `also`: bundles that the same transaction changes besides. Who removes a tag holds it first, then what it stands
    for. Who moved one that stands for the same, and then came to that tag, would wait for him, and he for that bundle.
    """
    more = tuple(also)
    if wanted:
        rows.take_turn(bundle.namespace, bundle.name, session)
    if len(wanted) + len(more) > 1:
        standing = rows.hold_several([_place(tag, bundle) for tag in wanted], session)
        hold_bundles((*standing, *more), session)


def require_live(bundle: BundleRow) -> None:
    """Raises BundleWithdrawn, or Conflict for a bundle that is not proven."""
    match bundle.state:
        case BundleState.LIVE:
            return
        case BundleState.WITHDRAWN:
            raise withdrawn(bundle.digest, reason=bundle.withdrawn_reason, replacement=bundle.replacement)
        case BundleState.PENDING | BundleState.REJECTED:
            raise Conflict(
                f"the bundle {bundle.digest} is {bundle.state}",
                hint="only a bundle that a worker has proven can be used",
                details={"replacement": bundle.replacement},
            )


def withdrawn(digest: Digest, *, reason: str, replacement: Digest | None) -> BundleWithdrawn:
    return BundleWithdrawn(
        f"the bundle {digest} was withdrawn: {reason}",
        hint=f"use {replacement} instead" if replacement else "build it again, or use another tag",
        details={"reason": reason, "replacement": replacement},
    )


def moved(tag: Tag, *, bundle: BundleRow, expected: Digest, now: datetime, session: Session) -> bool:
    """Let the tag stand for `bundle` where it stands for `expected` now; False where it does not."""
    place = _place(tag, bundle)
    _hold(bundle, session=session)
    if expected == NOWHERE:
        return rows.insert_tag(place, bundle.digest, now=now, session=session)
    if not rows.move_tag(place, bundle.digest, expected=expected, now=now, session=session):
        return False
    mark_used((expected,), now=now, session=session)
    return True


def _put_untuned(tag: Tag, place: rows.Place, *, bundle: BundleRow, now: datetime, session: Session) -> bool:
    """Only from where it was seen: between looking and moving a tuned bundle may get the tag."""
    while True:
        row = rows.find_tag(place, session)
        if row is not None and _goes_before(row.bundle, bundle, session):
            return False
        if moved(tag, bundle=bundle, expected=row.bundle if row else NOWHERE, now=now, session=session):
            return True


def _goes_before(standing: Digest, bundle: BundleRow, session: Session) -> bool:
    """Whether the bundle `standing` is live and was tuned for the key of `bundle`, which was not."""
    if not is_untuned(bundle):
        return False
    row = find_bundle(standing, session)
    if row is None or row.state is not BundleState.LIVE or row.damage is not None:
        return False
    return _key_of(row) == _key_of(bundle) and not is_untuned(row)


def _tuned_stays(tag: Tag, bundle: BundleRow) -> Conflict:
    return Conflict(
        f"{bundle.namespace}/{bundle.name}:{tag} stands for what was tuned on {bundle.profile}, "
        f"and {bundle.digest} was made without that card",
        hint="let the tag stay; withdraw the tuned bundle if it must not be used",
    )


def _hold(bundle: BundleRow, *, session: Session) -> None:
    if not hold_bundle(bundle.digest, session):
        raise BundleNotFound(f"the bundle {bundle.digest} has expired", hint="build it again")


def _leave(place: rows.Place, *, now: datetime, session: Session) -> None:
    """What the tag stood for was in use until now: retention counts from here.

    It is held, so that this is what the tag leaves, and held before its bundle, as whoever removes it does.
    """
    row = rows.hold_tag(place, session)
    if row is not None:
        mark_used((row.bundle,), now=now, session=session)


def _key_of(bundle: BundleRow) -> tuple[Namespace, Name, BuildKey]:
    return bundle.namespace, bundle.name, bundle.build_key


def _place(tag: Tag, bundle: BundleRow) -> rows.Place:
    return bundle.namespace, bundle.name, tag, bundle.profile
