"""Builds whose bytes cannot be had: they wait until somebody brings them again. A worker could only give them back."""

from collections.abc import Collection

from sqlalchemy.orm import Session

from registry.db import damage as rows
from registry.db.models import BuildRow


def reasons(found: Collection[BuildRow], session: Session) -> dict[str, str]:
    """Why what each of these builds is to read cannot be had, and what to do, by build; readable ones are absent.

    That is every blob of its spec, and of the pushed bundle that it proves.
    """
    bundles = {row.requalify for row in found if row.requalify}
    damages = rows.damages_of(bundles, session) if bundles else {}
    lacking = rows.lacking_of(bundles, session) if bundles else {}
    there = rows.readable((blob.digest for row in found for blob in row.spec.blobs), session)
    said: dict[str, str] = {}
    for row in found:
        gone = next((blob.digest for blob in row.spec.blobs if blob.digest not in there), None)
        if row.requalify in damages:
            said[row.id] = f"{damages[row.requalify]}; push the bundle again"
        elif row.requalify in lacking:
            said[row.id] = f"the registry lacks {lacking[row.requalify]}; push the bundle again"
        elif gone is not None:
            again = "push the bundle again, with what it was built from" if row.requalify else "submit it again"
            said[row.id] = f"the registry lacks {gone}; {again}"
    return said
