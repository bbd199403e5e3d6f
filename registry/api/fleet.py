"""Workers, profiles, receipts and tokens over HTTP."""

import structlog

from aot.schema.wire.workers import (
    ProfileListing,
    Receipt,
    RegisterReply,
    RegisterRequest,
    TokenReply,
    TokenRequest,
    WorkerListing,
)
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import fleet, receipts, tokens
from registry.services.tokens import Principal

log = structlog.get_logger()


@endpoint("register_worker")
def register_worker(data: RegisterRequest, deps: Deps, caller: Principal) -> RegisterReply:
    """Register a worker and its profiles; repeated, it says that the worker lives."""
    now, settings = deps.clock(), deps.settings
    with deps.sessions.transaction() as session:
        return fleet.register(
            data,
            by=caller,
            live_since=now - settings.worker_lives,
            seen_every_seconds=settings.seen_every.total_seconds(),
            now=now,
            session=session,
        )


@endpoint("list_workers")
def list_workers(deps: Deps, caller: Principal) -> WorkerListing:
    """List workers, by name: of many those that were seen last."""
    with deps.sessions.reading() as session:
        return fleet.list_workers(by=caller, live_since=deps.clock() - deps.settings.worker_lives, session=session)


@endpoint("list_profiles")
def list_profiles(deps: Deps, caller: Principal) -> ProfileListing:
    """List profiles, by name."""
    now = deps.clock()
    with deps.sessions.reading() as session:
        return fleet.list_profiles(live_since=now - deps.settings.worker_lives, now=now, session=session)


@endpoint("send_receipt")
def send_receipt(data: Receipt, deps: Deps, caller: Principal) -> None:
    """Tell how a load went."""
    with deps.sessions.transaction() as session:
        receipts.keep(data, by=caller, now=deps.clock(), session=session)
    if data.bundle is not None:
        deps.uses.note((data.bundle,), now=deps.clock())


@endpoint("create_token")
def create_token(data: TokenRequest, deps: Deps, caller: Principal) -> TokenReply:
    """Create a token, which is shown this once."""
    with deps.sessions.transaction() as session:
        reply = tokens.create(data, by=caller, now=deps.clock(), session=session)
    log.info("token-created", label=data.label, scopes=data.scopes, by=caller.label)
    return reply


ROUTES = (register_worker, list_workers, list_profiles, send_receipt, create_token)
