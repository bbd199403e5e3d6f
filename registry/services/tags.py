"""Tags: movable names. A tag stands for one bundle a profile, so that one tag serves a fleet."""

from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import BundleNotFound, BundleWithdrawn, Conflict, TagMoved
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.state import BundleState
from aot.schema.wire.bundles import TagRequest, TagView
from aot.schema.wire.workers import Scope
from registry.db import tags as rows
from registry.db.bundles import find_bundle, hold_bundle
from registry.db.models import BundleRow
from registry.db.retention import mark_used
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

    Raises Forbidden, BundleNotFound, BundleWithdrawn, Conflict for a bundle that is not live, and TagMoved naming
    what the tag stands for.
    """
    by.require(Scope.TAG, namespace)
    bundle = find_bundle(request.bundle, session)
    if bundle is None or (bundle.namespace, bundle.name) != (namespace, name):
        raise BundleNotFound(f"there is no bundle {request.bundle} of {namespace}/{name}", hint="search for bundles")
    require_live(bundle)
    if request.expected is None:
        put(tag, bundle=bundle, now=now, session=session)
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


def put(tag: Tag, *, bundle: BundleRow, now: datetime, session: Session) -> None:
    """Let the tag stand for `bundle`, wherever it stood. Raises BundleNotFound where it has expired meanwhile."""
    place = _place(tag, bundle)
    _hold(bundle, session=session)
    _leave(place, now=now, session=session)
    if rows.move_tag(place, bundle.digest, expected=None, now=now, session=session):
        return
    if not rows.insert_tag(place, bundle.digest, now=now, session=session):
        # Made by somebody else between the two statements.
        rows.move_tag(place, bundle.digest, expected=None, now=now, session=session)


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
    mark_used((expected,), now=now, session=session)
    return rows.move_tag(place, bundle.digest, expected=expected, now=now, session=session)


def _hold(bundle: BundleRow, *, session: Session) -> None:
    if not hold_bundle(bundle.digest, session):
        raise BundleNotFound(f"the bundle {bundle.digest} has expired", hint="build it again")


def _leave(place: rows.Place, *, now: datetime, session: Session) -> None:
    """What the tag stood for was in use until now: retention counts from here."""
    row = rows.find_tag(place, session)
    if row is not None:
        mark_used((row.bundle,), now=now, session=session)


def _place(tag: Tag, bundle: BundleRow) -> rows.Place:
    return bundle.namespace, bundle.name, tag, bundle.profile
