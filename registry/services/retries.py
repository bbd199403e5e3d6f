"""Another build of a spec whose build ended without a bundle: the old one stays as it ended, the new one names it."""

from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import InvalidInput
from aot.schema.state import BuildState
from aot.schema.wire.builds import SubmitReply, SubmitRequest
from aot.schema.wire.workers import Scope
from registry.db import builds as rows
from registry.db.models import BuildLineRow, BuildRow
from registry.services import blobs, builds
from registry.services.builds import Submitted
from registry.services.tokens import Principal

REASON_CHARACTERS = 1000


def readable(build: str, *, by: Principal, session: Session) -> BuildRow:
    """The build that `by` may retry. Raises BuildNotFound."""
    row = rows.find_build(build, session)
    if row is None or not by.may(Scope.SUBMIT, row.namespace):
        raise builds.build_not_found(build)
    return row


def retry(
    build: str,
    *,
    reason: str,
    by: Principal,
    arrived: blobs.Arrived,
    live_since: datetime,
    now: datetime,
    session: Session,
) -> Submitted:
    """Submit the build's spec again, with its tags and priority. A build that still lives is its own answer.

    Raises BuildNotFound, BuildFinished for one that has its bundle, InvalidInput for the proof of a pushed bundle,
    and what `builds.submit` raises.
    """
    row = readable(build, by=by, session=session)
    if row.state is BuildState.PUBLISHED:
        raise builds.finished(row)
    if row.requalify is not None:
        raise InvalidInput(f"build {build} is the proof of a pushed bundle", hint="push the bundle again")
    if row.state.live:
        return Submitted(SubmitReply(build=builds.view_of(row), created=False))
    request = SubmitRequest(spec=row.spec, tags=row.tags, priority=row.priority)
    submitted = builds.submit(request, by=by, arrived=arrived, live_since=live_since, now=now, session=session)
    if not submitted.reply.created:
        return submitted
    new = rows.find_build(submitted.reply.build.id, session)
    assert new is not None, "it was inserted just now"
    new.setback = _account(row, reason)
    rows.add_lines([BuildLineRow(build=new.id, sequence=0, at=now, text=new.setback)], session)
    reply = SubmitReply(build=builds.view_of(new), created=True)
    return Submitted(reply, submitted.ticket, submitted.queue)


def _account(row: BuildRow, reason: str) -> str:
    ended = f"build {row.id} ended {row.state}" + (f": {row.error.message}" if row.error else "")
    return (f"tried again ({reason}); " if reason else "tried again; ")[:REASON_CHARACTERS] + ended[:REASON_CHARACTERS]
