"""Which live bundle answers a submission: that of its key, and for who asks for tuning no untuned one."""

from sqlalchemy.orm import Session

from aot.schema.manifest import decode_manifest
from aot.schema.spec import Spec
from aot.schema.state import BundleState
from registry.db import bundles as rows
from registry.db.models import BundleRow


def find_answer(asked: rows.Asked, spec: Spec, session: Session) -> BundleRow | None:
    """Return the live bundle of the key that was published last, and serves `spec`.

    Code that was made for a card without that card has the key of the build that it stands for, and pods may have it;
    who submits a recipe that tunes wants what only the card can measure.
    """
    digest = rows.newest_live([asked], session).get(asked)
    newest = rows.find_bundle(digest, session) if digest else None
    if newest is None or not _lacks_tuning(newest, spec):
        return newest
    live = rows.find_of_key(asked, (BundleState.LIVE,), session)
    return next((row for row in live if row.damage is None and not _lacks_tuning(row, spec)), None)


def _lacks_tuning(bundle: BundleRow, spec: Spec) -> bool:
    if bundle.capability.family == "cpu" or not spec.recipe.mode.tunes:
        return False
    return any(artifact.tuned is False for artifact in decode_manifest(bundle.manifest).artifacts)
