"""Which live bundle answers a question: that of its key, and where the recipe tunes no untuned one.

Code that was made for a card without that card has the key of the build that it stands for, and pods may have it. Who
asks for a recipe that tunes wants what only the card can measure, and where a tag has that it keeps it
(`registry.services.tags`).
"""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from aot.schema.digest import Digest
from aot.schema.manifest import decode_manifest
from aot.schema.profile import Profile
from aot.schema.spec import Spec
from aot.schema.state import BundleState
from registry.db import bundles as rows
from registry.db import hot
from registry.db.models import BundleRow

_UNTUNED = b'"tuned":false'  # as the canonical encoding has it: most manifests need not be decoded


def find_answers(asked: Mapping[rows.Asked, bool], session: Session) -> dict[rows.Asked, Digest]:
    """For each the live bundle that was published last of those that answer it, where there is one.

    `asked`: whether it is what only a card measures (`wants_tuning`); of all others no manifest is read.
    """
    newest = rows.newest_live([*asked], session)
    in_doubt = {digest for one, digest in newest.items() if asked[one]}
    untuned = {found.digest for found in hot.resolve_digests(in_doubt, session) if _is_untuned(found.manifest)}
    answers = {}
    for one, digest in newest.items():
        found = digest if digest not in untuned else _newest_tuned(one, session)
        if found is not None:
            answers[one] = found
    return answers


def find_answer(asked: rows.Asked, spec: Spec, session: Session) -> BundleRow | None:
    digest = find_answers({asked: spec.recipe.mode.tunes}, session).get(asked)
    return rows.find_bundle(digest, session) if digest else None


def wants_tuning(spec: Spec, profile: Profile) -> bool:
    return profile.capability.family != "cpu" and spec.recipe.mode.tunes


def is_untuned(bundle: BundleRow) -> bool:
    """Whether its recipe tunes, and its code was made without the card."""
    return bundle.capability.family != "cpu" and _is_untuned(bundle.manifest)


def _is_untuned(content: bytes) -> bool:
    if _UNTUNED not in content:
        return False
    manifest = decode_manifest(content)
    tuning = wants_tuning(manifest.spec, manifest.profile)
    return tuning and any(artifact.tuned is False for artifact in manifest.artifacts)


def _newest_tuned(asked: rows.Asked, session: Session) -> Digest | None:
    live = rows.find_of_key(asked, (BundleState.LIVE,), session)
    return next((row.digest for row in live if row.damage is None and not is_untuned(row)), None)
