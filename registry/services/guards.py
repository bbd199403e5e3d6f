"""The index of a bundle's guards: which bundles ask for this torch release, this libc floor, this CPU level.

A guard on the host is found by its kind and value (`libc`, `2.28`), one on the inputs by `input.` and its kind; of
these only dtype and device have a value here: sizes, strides and expressions are coverage, not what people look for.
Each is there once for a bundle, however many artifacts put it.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from aot.errors import InvalidInput
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from registry.db import guards as rows
from registry.db.models import GuardRow
from registry.db.types import plain

INPUT = "input."
SPOKEN = frozenset({"dtype", "device"})
LONGEST = 256  # characters of a value that are kept and compared; an index holds no page-long one
MOST_ASKED = 16


def rows_of(bundle: Digest, manifest: Manifest) -> list[GuardRow]:
    """The index of a manifest's guards."""
    found = set()
    for artifact in manifest.artifacts:
        found |= {(guard.kind, guard.value[:LONGEST]) for guard in artifact.host_guards}
        found |= {
            (INPUT + guard.kind, (guard.value or "")[:LONGEST] if guard.kind in SPOKEN else "")
            for guard in artifact.input_guards
        }
    # As the columns keep them: two that differ in what is replaced are one row.
    found = {(plain(kind), plain(value)) for kind, value in found}
    return [GuardRow(bundle=bundle, kind=kind, value=value) for kind, value in sorted(found)]


def parse(texts: Sequence[str]) -> tuple[rows.AskedGuard, ...]:
    """Read `KIND` or `KIND=VALUE`, each. Raises InvalidInput."""
    if len(texts) > MOST_ASKED:
        raise InvalidInput(f"wanted at most {MOST_ASKED} guards, found {len(texts)}", hint="ask for fewer")
    asked = []
    for text in texts:
        kind, has_value, value = text.partition("=")
        if not kind or (has_value and not value):
            raise InvalidInput(
                f"wanted a guard as KIND or KIND=VALUE, found {text[:120]!r}", hint="for example torch=2.13.0+cpu"
            )
        asked.append((kind, value[:LONGEST] if has_value else None))
    return tuple(asked)


def lacking_rows(bundle: Digest, manifest: Manifest, session: Session) -> list[GuardRow]:
    """What the index lacks of a bundle."""
    known = rows.indexed(bundle, session)
    return [row for row in rows_of(bundle, manifest) if (row.kind, row.value) not in known]
