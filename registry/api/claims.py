"""Builds over HTTP, as workers see them: from claim to publish."""

from functools import partial

import structlog

from aot.schema.wire.builds import (
    BuildView,
    Claim,
    ClaimReply,
    ClaimRequest,
    FailRequest,
    ProgressRequest,
    ReleaseRequest,
    RenewReply,
)
from aot.schema.wire.bundles import PublishReply, PublishRequest
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import blobs, bundles, claims, damage, measurements, proof, records
from registry.services.tokens import Principal

log = structlog.get_logger()


@endpoint("claim")
def claim(data: ClaimRequest, deps: Deps, caller: Principal) -> ClaimReply:
    """Take the best waiting build that fits the worker."""
    now, settings = deps.clock(), deps.settings
    with deps.sessions.transaction() as session:
        claimed = claims.claim(
            data,
            by=caller,
            lease=settings.lease,
            token_lives=settings.attempt_lives,
            limits=settings.running_limits,
            now=now,
            session=session,
        )
    if isinstance(claimed, str):
        return ClaimReply(waiting=claimed)
    row = claimed.build
    log.info("build-claimed", build=row.id, attempt=row.attempt, worker=data.worker)
    wanted = blobs.distinct(row.spec.blobs)
    # Retention keeps the blobs of a build that runs. Nobody has a use for them once the attempt is over.
    lives = min(blobs.lives_for(wanted, least=settings.link_lives), max(settings.link_lives, settings.attempt_lives))
    links = blobs.download_links(wanted, deps.store, expires_in=lives)
    measured = claimed.measurements and deps.store.download_link(claimed.measurements, expires_in=lives)
    return ClaimReply(
        claim=Claim(
            build=row.id,
            attempt=row.attempt,
            spec=row.spec,
            profile=claimed.profile,
            build_key=row.build_key,
            factors=row.factors,
            token=claimed.token,
            lease_expires_at=now + settings.lease,
            lease_seconds=settings.lease.total_seconds(),
            links=links,
            requalify=row.requalify,
            tags=row.tags,
            measurements=measured,
            keeps_measurements=True,
            host_faults=row.host_faults,
        )
    )


@endpoint("renew")
def renew(build: str, deps: Deps, caller: Principal) -> RenewReply:
    """Extend the lease, and learn whether to stop."""
    with deps.sessions.transaction() as session:
        return claims.renew(build, by=caller, lease=deps.settings.lease, now=deps.clock(), session=session)


@endpoint("report_progress")
def report_progress(data: ProgressRequest, build: str, deps: Deps, caller: Principal) -> RenewReply:
    """Say where the attempt stands; it extends the lease too."""
    with deps.sessions.transaction() as session:
        return claims.report(build, data, by=caller, lease=deps.settings.lease, now=deps.clock(), session=session)


@endpoint("fail")
def fail(data: FailRequest, build: str, deps: Deps, caller: Principal) -> BuildView:
    """End the build with an error."""
    with deps.sessions.transaction() as session:
        view = claims.fail(build, data, by=caller, now=deps.clock(), session=session)
    log.info("build-failed", build=build, code=data.error.code, reason=data.error.message)
    return view


@endpoint("release")
def release(data: ReleaseRequest, build: str, deps: Deps, caller: Principal) -> BuildView:
    """Give the build back to the queue."""
    with deps.sessions.transaction() as session:
        view = claims.release(build, data, by=caller, now=deps.clock(), session=session)
    log.info("build-released", build=build, reason=data.reason, damaged=data.damaged, host_fault=data.host_fault)
    if data.damaged:
        deps.suspects.add(data.damaged, partial(damage.quarantine_if_wrong, namespace=view.namespace, deps=deps))
    return view


@endpoint("publish")
def publish(data: PublishRequest, build: str, deps: Deps, caller: Principal) -> PublishReply:
    """End the build with a bundle, which becomes visible."""
    received = proof.read(data.manifest)
    bundles.require_namespace(received, by=caller)
    measured = measurements.check(data.measurements)
    wanted = (*received.manifest.blobs, *measured)
    with blobs.confirming(wanted, deps, namespace=received.manifest.namespace) as (arrived, session):
        reply = bundles.publish(
            build,
            received,
            by=caller,
            arrived=arrived,
            measurements_sent=measured,
            keys=deps.signing_keys,
            now=deps.clock(),
            session=session,
        )
    records.write_soon(deps, reply.bundle)
    log.info("bundle-published", bundle=reply.bundle, build=build)
    return reply


ROUTES = (claim, renew, report_progress, fail, release, publish)
