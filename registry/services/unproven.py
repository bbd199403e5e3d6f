"""Pushed bundles that nobody proves: after AOT_KEEP_PENDING_SECONDS they are rejected, and their build ends with them.

The time counts from the push that began the wait, which is when the build that is to prove the bundle was made. A
build that runs is left to end by itself. A rejected bundle stays readable, with the reason, for AOT_KEEP_OUT_SECONDS.
"""

import math
import time
from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import CompileStopped
from aot.schema.digest import Digest
from aot.schema.state import BuildEvent, BuildState, BundleState
from aot.schema.wire.errors import ErrorBody
from registry.db import builds as build_rows
from registry.db import bundles as rows
from registry.db import retention as retention_rows
from registry.deps import Deps

AT_ONCE = 200


def find_unproven(deps: Deps) -> tuple[Digest, ...]:
    """What `reject_unproven` would reject now."""
    with deps.sessions.reading() as session:
        found = retention_rows.unproven_bundles(session, since=_since(deps), after=None, limit=None)
    return tuple(digest for digest, _ in found)


def reject_unproven(deps: Deps, *, seconds: float = math.inf) -> tuple[tuple[Digest, ...], bool]:
    """Return the bundles that are out from now on, and whether others may be left: the `seconds` were over.

    Of several sweepers one rejects each. Raises StorageUnavailable.
    """
    rejected: list[Digest] = []
    after: Digest | None = None
    until = time.monotonic() + seconds
    while True:
        with deps.sessions.reading() as session:
            page = retention_rows.unproven_bundles(session, since=_since(deps), after=after, limit=AT_ONCE)
        for digest, build in page:  # one a transaction: it waits for a build with nothing else held
            with deps.sessions.transaction() as session:
                done = _reject(digest, build, deps, session)
            rejected += [digest] if done else []
            if time.monotonic() >= until:
                return tuple(rejected), True
        if not page:
            return tuple(rejected), False
        after = page[-1][0]


def _since(deps: Deps) -> datetime:
    return deps.clock() - deps.settings.keep_pending


def _reject(digest: Digest, build: str | None, deps: Deps, session: Session) -> bool:
    """False where a worker has taken the build, or somebody else has ended it, meanwhile."""
    now, days = deps.clock(), deps.settings.keep_pending.total_seconds() / 86400
    text = f"no worker has proven it within {days:g} days"
    if build is not None:
        row = build_rows.find_build(build, session)
        error = ErrorBody.of(CompileStopped(text, hint="start a worker of its profile, and push the bundle again"))
        if row is None or row.state is not BuildState.QUEUED:
            return False
        if not build_rows.advance_build(row, BuildEvent.CANCEL, session=session, error=error, finished_at=now):
            return False
    bundle = rows.find_bundle(digest, session)
    if bundle is None or bundle.state is not BundleState.PENDING:
        return False
    return rows.advance_bundle(bundle, BundleState.REJECTED, session=session, withdrawn_reason=text, withdrawn_at=now)
