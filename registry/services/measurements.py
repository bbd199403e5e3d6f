"""What tuning has measured while a bundle was built, handed to later builds that would measure the same.

It lies beside the bundle and is no part of it: no pod fetches it, and no digest or signature is over it. A namespace is
given its own measurements alone, and those of a bundle that has passed its proof and is live; what a build makes of
them is proven like every build. They live as long as their bundle, and are no part of its record: after `reindex` the
first build of a profile is tuned afresh.
"""

from sqlalchemy.orm import Session

from aot.errors import InvalidInput
from aot.keys import measurements_key
from aot.schema.profile import Profile
from aot.schema.spec import Blob
from registry.db import measurements as rows
from registry.db.models import BuildRow, MeasurementRow
from registry.services.proof import Received

# A large model's are about a megabyte.
MOST_BYTES = 64 << 20


def check(measurements: Blob | None) -> tuple[Blob, ...]:
    """The blob, if any, as one of those that a publish needs. Raises InvalidInput for an empty or too large one."""
    if measurements is None:
        return ()
    if not 0 < measurements.size_bytes <= MOST_BYTES:
        raise InvalidInput(
            f"measurements of {measurements.size_bytes} bytes; wanted 1 to {MOST_BYTES}",
            hint="publish without them: later builds measure again",
        )
    return (measurements,)


def add(received: Received, measurements: Blob, session: Session) -> None:
    """Keep them beside the bundle, whose row is there."""
    manifest = received.manifest
    row = MeasurementRow(
        bundle=received.digest,
        namespace=manifest.namespace,
        key=measurements_key(manifest.profile),
        blob=measurements.digest,
        size_bytes=measurements.size_bytes,
    )
    rows.add_measurements(row, session)


def find(build: BuildRow, profile: Profile, session: Session) -> Blob | None:
    """What a build that tunes may begin with."""
    if not build.spec.recipe.mode.tunes or build.requalify is not None:
        return None
    return rows.newest_measurements(build.namespace, measurements_key(profile), session)
