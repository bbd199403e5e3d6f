"""Builds over HTTP, as submitters see them."""

import structlog

from aot.schema.names import Name, Namespace
from aot.schema.state import BuildState
from aot.schema.wire.builds import (
    BuildListing,
    BuildLog,
    BuildView,
    CancelRequest,
    RetryRequest,
    SubmitReply,
    SubmitRequest,
)
from registry.api import query
from registry.api.queue import send
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import blobs, builds, retries
from registry.services.tokens import Principal

log = structlog.get_logger()


@endpoint("submit")
def submit(data: SubmitRequest, deps: Deps, caller: Principal) -> SubmitReply:
    """Ask for a bundle of a spec: one that is live or being built already is the answer."""
    with blobs.confirming(data.spec.blobs, deps, namespace=data.spec.namespace) as (arrived, session):
        now = deps.clock()
        submitted = builds.submit(
            data,
            by=caller,
            arrived=arrived,
            live_since=now - deps.settings.worker_lives,
            now=now,
            session=session,
        )
    send(submitted.ticket, submitted.queue, deps)
    build = submitted.reply.build
    log.info(
        "build-submitted",
        build=build.id,
        key=build.build_key,
        created=submitted.reply.created,
        by=caller.label,
    )
    return submitted.reply


@endpoint("list_builds")
def list_builds(
    deps: Deps,
    caller: Principal,
    namespace: str | None = None,
    name: str | None = None,
    profile: str | None = None,
    in_state: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> BuildListing:
    """List builds, newest first."""
    with deps.sessions.reading() as session:
        return builds.list_builds(
            namespace=query.text(namespace, Namespace),
            name=query.text(name, Name),
            profile=query.text(profile, Name),
            state=query.choice(in_state, BuildState),
            after=after,
            limit=limit,
            by=caller,
            limits=deps.settings.running_limits,
            session=session,
        )


@endpoint("get_build")
def get_build(build: str, deps: Deps, caller: Principal) -> BuildView:
    """Get one build."""
    with deps.sessions.reading() as session:
        return builds.get(build, by=caller, limits=deps.settings.running_limits, session=session)


@endpoint("get_build_log")
def get_build_log(build: str, deps: Deps, caller: Principal, after: int = -1, limit: int | None = None) -> BuildLog:
    """Get the log's lines after a sequence number."""
    with deps.sessions.reading() as session:
        return builds.read_log(build, after=after, limit=limit, by=caller, session=session)


@endpoint("cancel")
def cancel(data: CancelRequest, build: str, deps: Deps, caller: Principal) -> BuildView:
    """End a build; its worker stops when it renews."""
    with deps.sessions.transaction() as session:
        view = builds.cancel(build, reason=data.reason, by=caller, now=deps.clock(), session=session)
    log.info("build-cancelled", build=build, by=caller.label, reason=data.reason)
    return view


@endpoint("retry")
def retry(data: RetryRequest, build: str, deps: Deps, caller: Principal) -> SubmitReply:
    """Build the spec of a failed or cancelled build again."""
    with deps.sessions.reading() as session:
        spec = retries.readable(build, by=caller, session=session).spec
    with blobs.confirming(spec.blobs, deps, namespace=spec.namespace) as (arrived, session):
        now = deps.clock()
        submitted = retries.retry(
            build,
            reason=data.reason,
            by=caller,
            arrived=arrived,
            live_since=now - deps.settings.worker_lives,
            now=now,
            session=session,
        )
    send(submitted.ticket, submitted.queue, deps)
    log.info("build-retried", build=submitted.reply.build.id, of=build, by=caller.label, reason=data.reason)
    return submitted.reply


ROUTES = (submit, list_builds, get_build, get_build_log, cancel, retry)
