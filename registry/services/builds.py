"""Builds from the submitter's side: submit, follow, cancel.

Second step of the flow submit → compile → publish (design.md, section 5): `submit` turns a spec into a key, answers
with what exists for that key already, and otherwise leaves a queued row behind. The ticket is sent by the handler,
after the commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace
from sqlalchemy.orm import Session

from aot.errors import BuildFinished, BuildNotFound, CompileStopped
from aot.keys import factors_of, key_of, queue_for
from aot.schema.names import Name, Namespace, Tag
from aot.schema.profile import Profile
from aot.schema.spec import Spec
from aot.schema.state import BuildEvent, BuildState, BundleState
from aot.schema.wire.builds import (
    BuildListing,
    BuildLog,
    BuildView,
    LogLine,
    SubmitReply,
    SubmitRequest,
    Ticket,
)
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.clock import sortable_id
from registry.db import builds as rows
from registry.db import bundles as bundle_rows
from registry.db import fleet as fleet_rows
from registry.db.blobs import ensure_namespace
from registry.db.models import BuildRow
from registry.services import blobs, candidates, tags, waiting
from registry.services.answers import find_answer
from registry.services.paging import limit_of
from registry.services.profiles import get_worker_profile
from registry.services.requests import check_request
from registry.services.tokens import Principal
from registry.services.turns import RunningLimits

HIGHEST_SEQUENCE = 2**31 - 1


@dataclass(frozen=True)
class Submitted:
    """`ticket` is to be sent to `queue` once the transaction is committed; None: nothing new to build."""

    reply: SubmitReply
    ticket: Ticket | None = None
    queue: str = ""


def submit(
    request: SubmitRequest,
    *,
    by: Principal,
    arrived: blobs.Arrived,
    live_since: datetime,
    now: datetime,
    session: Session,
) -> Submitted:
    """Return the live bundle or the live build for the spec's key, else a new build.

    Raises Forbidden, InvalidSpec, ProfileNotFound, InvalidProfile, and what `blobs.confirm` raises when the source is
    not there.
    """
    spec = request.spec
    by.require(Scope.SUBMIT, spec.namespace)
    check_request(request)
    profile = get_worker_profile(spec.profile, now=now, session=session)
    row = new_build(spec, profile=profile, tags=request.tags, priority=request.priority, by=by, now=now)
    asked = (row.namespace, row.name, row.build_key)
    if found := _published(asked, request, now=now, session=session):
        return Submitted(SubmitReply(build=view_of(found), created=False))
    if found := _joined(asked, request, session=session):
        return Submitted(SubmitReply(build=view_of(found), created=False))
    ensure_namespace(spec.namespace, now=now, session=session)
    blobs.confirm(spec.blobs, namespace=spec.namespace, arrived=arrived, now=now, session=session)
    live = spec.profile in fleet_rows.live_profiles(session, seen_since=live_since)
    row.waiting = waiting.reason(spec, factors=row.factors, profile=profile, live=live)
    while not rows.insert(row, session):
        # Another submitter was faster. Where its build has ended since, this one is new after all.
        if found := _joined(asked, request, session=session):
            return Submitted(SubmitReply(build=view_of(found), created=False))
    return Submitted(SubmitReply(build=view_of(row), created=True), Ticket(build=row.id), queue_for(profile))


def new_build(
    spec: Spec, *, profile: Profile, tags: tuple[Tag, ...], priority: int, by: Principal, now: datetime
) -> BuildRow:
    """Return a queued row, not yet in the database."""
    factors = factors_of(spec, profile)
    return BuildRow(
        id=sortable_id(now),
        namespace=spec.namespace,
        name=spec.name,
        profile=profile.name,
        build_key=key_of(factors),
        factors=factors,
        spec=spec,
        tags=tuple(dict.fromkeys(tags)),
        priority=priority,
        submitted_by=by.label,
        state=BuildState.QUEUED,
        attempt=0,
        lost_leases=0,
        host_faults=0,
        shutdowns=0,
        step="",
        waiting="",
        setback="",
        sent_at=now,
        created_at=now,
    )


def get(build: str, *, by: Principal, limits: RunningLimits, session: Session) -> BuildView:
    """Raises BuildNotFound, also for what `by` may not read."""
    row = _readable(build, by=by, session=session)
    return _limited((row,), limits, session)[0]


def read_log(build: str, *, after: int, limit: int | None, by: Principal, session: Session) -> BuildLog:
    """The log's lines after the sequence number `after`. Raises BuildNotFound."""
    row = _readable(build, by=by, session=session)
    after = max(-1, min(after, HIGHEST_SEQUENCE))
    lines = rows.read_lines(row.id, session, after=after, limit=limit_of(limit, default=1000, most=10000))
    return BuildLog(lines=tuple(LogLine(sequence=line.sequence, at=line.at, text=line.text) for line in lines))


def list_builds(
    *,
    namespace: Namespace | None,
    name: Name | None,
    profile: Name | None,
    state: BuildState | None,
    after: str | None,
    limit: int | None,
    by: Principal,
    limits: RunningLimits,
    session: Session,
) -> BuildListing:
    """The builds that `by` may read, newest first."""
    size = limit_of(limit)
    found = rows.list_builds(
        session,
        where={"namespace": namespace, "name": name, "profile": profile, "state": state},
        namespaces=by.namespaces,
        after=after,
        limit=size + 1,
    )
    page = found[:size]
    return BuildListing(builds=_limited(page, limits, session), next=page[-1].id if len(found) > size else None)


def cancel(build: str, *, reason: str, by: Principal, now: datetime, session: Session) -> BuildView:
    """End the build; its worker learns of it when it renews. Cancelling twice is once.

    Raises BuildNotFound, and BuildFinished for a build that has ended otherwise.
    """
    row = rows.find_build(build, session)
    if row is None or not by.may(Scope.SUBMIT, row.namespace):
        raise build_not_found(build)
    text = f"cancelled by {by.label}" + (f": {reason}" if reason else "")
    error = ErrorBody.of(CompileStopped(text, hint="submit the spec again to build it"))
    # A worker may claim, or a sweeper expire, in between: look again, and cancel what is there then.
    while row.state.live:
        if rows.advance_build(row, BuildEvent.CANCEL, session=session, error=error, finished_at=now):
            reject_pushed(row, reason=text, session=session)
    if row.state is not BuildState.CANCELLED:
        raise finished(row)
    return view_of(row)


def reject_pushed(row: BuildRow, *, reason: str, session: Session) -> None:
    """A pushed bundle whose proof ended without success is out."""
    bundle = bundle_rows.find_bundle(row.requalify, session) if row.requalify else None
    if bundle is not None and bundle.state is BundleState.PENDING:
        changes = {"withdrawn_reason": reason, "withdrawn_at": row.finished_at}
        bundle_rows.advance_bundle(bundle, BundleState.REJECTED, session=session, **changes)


def _limited(found: Sequence[BuildRow], limits: RunningLimits, session: Session) -> tuple[BuildView, ...]:
    """The views; a build that waits because its namespace runs as many as it may says so."""
    held_back = candidates.held_back(found, limits, session)
    views = [(view_of(row), held_back.get(row.id)) for row in found]
    return tuple(
        replace(view, waiting="; ".join(filter(None, (view.waiting, why)))) if why else view for view, why in views
    )


def view_of(row: BuildRow) -> BuildView:
    return BuildView(
        id=row.id,
        namespace=row.namespace,
        name=row.name,
        profile=row.profile,
        build_key=row.build_key,
        state=row.state,
        attempt=row.attempt,
        created_at=row.created_at,
        phase=row.phase,
        step=row.step,
        waiting="; ".join(filter(None, (row.setback, row.waiting))) if row.state is BuildState.QUEUED else "",
        started_at=row.started_at,
        finished_at=row.finished_at,
        bundle=row.bundle,
        error=row.error,
        report=row.report,
        tags=row.tags,
        frozen=row.spec.recipe.freeze,
    )


def build_not_found(build: str) -> BuildNotFound:
    return BuildNotFound(f"there is no build {build}", hint="list builds; it may lie in a namespace you cannot see")


def finished(row: BuildRow) -> BuildFinished:
    return BuildFinished(
        f"build {row.id} has ended: {row.state}",
        hint="submit the spec again for another build",
        details={"state": row.state, "bundle": row.bundle},
    )


def _readable(build: str, *, by: Principal, session: Session) -> BuildRow:
    row = rows.find_build(build, session)
    if row is None or not by.may(Scope.READ, row.namespace):
        raise build_not_found(build)
    return row


def _published(asked: rows.Asked, request: SubmitRequest, *, now: datetime, session: Session) -> BuildRow | None:
    """The build of the live bundle for this key; the tags of the submission move to that bundle at once."""
    bundle = find_answer(asked, request.spec, session)
    if bundle is None or bundle.build is None:
        return None
    tags.hold(request.tags, bundle=bundle, session=session)
    for tag in sorted(request.tags):
        tags.put(tag, bundle=bundle, now=now, session=session)
    return rows.find_build(bundle.build, session)


def _joined(asked: rows.Asked, request: SubmitRequest, *, session: Session) -> BuildRow | None:
    """The live build for this key, to which the submission adds its tags and, where it is higher, its priority."""
    row = rows.find_live(asked, session)
    return row if row is not None and add_tags(row, request.tags, session=session, priority=request.priority) else None


def add_tags(row: BuildRow, more: tuple[Tag, ...], *, session: Session, priority: int | None = None) -> bool:
    """Let a live build put these tags as well, and raise its priority. False where it has ended meanwhile."""
    while row.state.live:
        changes: dict[str, object] = {"tags": tuple(dict.fromkeys((*row.tags, *more)))}
        if priority is not None:
            changes["priority"] = max(row.priority, priority)
        if rows.update_build(row, session=session, **changes):
            return True
    return False
