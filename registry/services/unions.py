"""Unions of captured caches: a tag moves to one only where nothing of what it stood for is lost.

Several pods write back at once, and each pushes what it had restored with what it compiled. Whoever is proven second
has to hold what the first has brought; a worker that is told TagMoved joins them and publishes again.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import Conflict, TagMoved
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.names import Tag
from aot.schema.spec import CommandSource, Spec
from aot.schema.state import BundleState
from registry.db import tags as rows
from registry.db.bundles import find_bundle
from registry.db.models import BundleRow
from registry.services import tags


def is_union(spec: Spec) -> bool:
    source = spec.source
    return isinstance(source, CommandSource) and source.union_of is not None


def put_tags(wanted: Sequence[Tag], *, bundle: BundleRow, spec: Spec, now: datetime, session: Session) -> None:
    """Let the tags stand for `bundle`, proven for `spec`.

    Raises TagMoved where a union would lose entries, and Conflict where it would take the place of what was withdrawn.
    """
    put = _put if is_union(spec) else tags.put
    tags.hold(wanted, bundle=bundle, session=session)
    for tag in sorted(wanted):
        put(tag, bundle=bundle, now=now, session=session)


def put_tags_again(wanted: Sequence[Tag], *, bundle: BundleRow, spec: Spec, now: datetime, session: Session) -> None:
    """Let the tags stand for `bundle`, live already and pushed once more with `spec`.

    A tag that stands for what a union lacks stays where it is: others have written back since.
    """
    tags.hold(wanted, bundle=bundle, session=session)
    for tag in sorted(wanted):
        with contextlib.suppress(Conflict):
            put_tags((tag,), bundle=bundle, spec=spec, now=now, session=session)


def _put(tag: Tag, *, bundle: BundleRow, now: datetime, session: Session) -> None:
    row = rows.find_tag((bundle.namespace, bundle.name, tag, bundle.profile), session)
    if row is None:
        expected = tags.NOWHERE
    else:
        expected = row.bundle
        if (fault := _fault(expected, bundle, session)) is not None:
            raise _moved(tag, bundle, expected, fault)
    if not tags.moved(tag, bundle=bundle, expected=expected, now=now, session=session):
        raise _moved(tag, bundle, expected, "it has moved meanwhile")


def _fault(before: Digest, union: BundleRow, session: Session) -> str | None:
    """Why the union cannot take the place of the bundle `before`; None where it has all that is there.

    Raises Conflict for a bundle that is not live: no worker can join with it, however often it is told to.
    """
    row = find_bundle(before, session)
    if row is None or row.state is not BundleState.LIVE:
        state = row.state if row is not None else "gone"
        raise Conflict(
            f"{union.namespace}/{union.name} is tagged with {before}, which is {state}: a union does not replace it",
            hint="let the tag stand for a live bundle of that profile, and write back again",
            details={"found": before},
        )
    old, new = decode_manifest(row.manifest), decode_manifest(union.manifest)
    if not isinstance(old.spec.source, CommandSource) or old.spec.source.tree != _tree_of(new):
        return "that is another program"
    lost = _paths(old) - _paths(new)
    return f"{len(lost)} entries of that would be lost: {min(lost)[:200]}" if lost else None


def _tree_of(manifest: Manifest) -> object:
    source = manifest.spec.source
    return source.tree if isinstance(source, CommandSource) else None


def _paths(manifest: Manifest) -> frozenset[str]:
    return frozenset(file.path for artifact in manifest.artifacts for file in artifact.files)


def _moved(tag: Tag, bundle: BundleRow, found: Digest, fault: str) -> TagMoved:
    return TagMoved(
        f"{bundle.namespace}/{bundle.name}:{tag} stands for {found}, which the union does not replace: {fault}",
        hint="join it with what the tag stands for now, and publish again",
        details={"found": found},
    )
