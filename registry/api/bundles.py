"""Bundles over HTTP."""

import structlog

from aot.schema.capability import Capability
from aot.schema.digest import BuildKey, Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.recipe import Route
from aot.schema.state import BundleState
from aot.schema.wire.bundles import (
    BundleListing,
    BundleView,
    FindReply,
    FindRequest,
    PublishReply,
    PushRequest,
    ResolveReply,
    TagRequest,
    TagView,
    UntagReply,
    WithdrawRequest,
)
from registry.api import query
from registry.api.queue import send
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import blobs, bundles, lookup, proof, records, tags
from registry.services.tokens import Principal

log = structlog.get_logger()
# Of a reply to `resolve`. A pod needs the blobs of one of its bundles at most, which of many are a small part.
MOST_LINKED = 64


@endpoint("push")
def push(data: PushRequest, deps: Deps, caller: Principal) -> PublishReply:
    """Send a bundle built elsewhere; it is pending until a worker has proven it again."""
    received = proof.read(data.manifest)
    bundles.require_namespace(received, by=caller)
    manifest = received.manifest
    wanted = (*manifest.blobs, *manifest.spec.blobs)
    with blobs.confirming(wanted, deps, namespace=manifest.namespace) as (arrived, session):
        pushed = bundles.push(data, received, by=caller, arrived=arrived, now=deps.clock(), session=session)
    send(pushed.ticket, pushed.queue, deps)
    if pushed.reply.state is BundleState.LIVE:
        records.write_soon(deps, pushed.reply.bundle)
    log.info("bundle-pushed", bundle=pushed.reply.bundle, build=pushed.reply.build, by=caller.label)
    return pushed.reply


@endpoint("search")
def search(
    deps: Deps,
    caller: Principal,
    namespace: str | None = None,
    name: str | None = None,
    profile: str | None = None,
    capability: str | None = None,
    torch: str | None = None,
    in_state: str | None = None,
    build_key: str | None = None,
    text: str | None = None,
    tag: str | None = None,
    route: str | None = None,
    guard: list[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> BundleListing:
    """Search bundles, newest first."""
    with deps.sessions.reading() as session:
        return lookup.search(
            namespace=query.text(namespace, Namespace),
            name=query.text(name, Name),
            profile=query.text(profile, Name),
            capability=query.text(capability, Capability),
            torch=torch,
            state=query.choice(in_state, BundleState),
            build_key=query.text(build_key, BuildKey),
            text=text,
            tag=query.text(tag, Tag),
            route=query.choice(route, Route),
            guards=tuple(guard or ()),
            after=after,
            limit=limit,
            by=caller,
            settings=deps.settings,
            session=session,
        )


@endpoint("get_bundle")
def get_bundle(digest: str, deps: Deps, caller: Principal) -> BundleView:
    """Get one bundle, in whatever state."""
    with deps.sessions.reading() as session:
        return lookup.get(Digest.parse(digest), by=caller, settings=deps.settings, session=session)


@endpoint("find")
def find(data: FindRequest, deps: Deps, caller: Principal) -> FindReply:
    """Find what answers each of several specs."""
    with deps.sessions.reading() as session:
        reply = lookup.find(data, by=caller, now=deps.clock(), session=session)
    deps.uses.note((target.bundle.digest for target in reply.targets if target.bundle), now=deps.clock())
    return reply


@endpoint("resolve", direct=True)
def resolve(namespace: str, name: str, target: str, deps: Deps, caller: Principal, links: bool = False) -> ResolveReply:
    """Resolve a tag or digest to signed manifests, with links to their blobs where those are few."""
    model = Namespace.parse(namespace), Name.parse(name)
    most = MOST_LINKED if links else 0
    with deps.sessions.glancing() as reader:
        found = lookup.resolve(*model, target, most_blobs=most, by=caller, reader=reader)
    if links or target.startswith("sha256:"):  # what a tag names is pinned by it
        deps.uses.note((bundle.digest for bundle in found.bundles), now=deps.clock())
    linked = blobs.download_links(found.blobs, deps.store, expires_in=deps.settings.link_lives)
    return ResolveReply(bundles=found.bundles, links=linked)


@endpoint("tag")
def move_tag(data: TagRequest, namespace: str, name: str, tag: str, deps: Deps, caller: Principal) -> TagView:
    """Let a tag stand for a bundle."""
    with deps.sessions.transaction() as session:
        view = tags.move(
            Namespace.parse(namespace),
            Name.parse(name),
            Tag.parse(tag),
            request=data,
            by=caller,
            now=deps.clock(),
            session=session,
        )
    records.write_soon(deps, view.bundle)
    log.info("tag-moved", reference=view.reference, bundle=view.bundle, profile=view.profile, by=caller.label)
    return view


@endpoint("untag")
def remove_tag(
    namespace: str, name: str, tag: str, deps: Deps, caller: Principal, expected: str | None = None
) -> UntagReply:
    """Let a tag stand for nothing any more, or for one bundle less."""
    reference = Reference(f"{Namespace.parse(namespace)}/{Name.parse(name)}:{Tag.parse(tag)}")
    # Empty is refused as well: a script whose variable is not set would remove more than it meant.
    guard = None if expected is None else Digest.parse(expected)
    with deps.sessions.transaction() as session:
        reply = tags.remove(reference, expected=guard, by=caller, now=deps.clock(), session=session)
    records.forget_soon(deps, reference)
    log.info("tag-removed", reference=reference, bundles=[view.bundle for view in reply.removed], by=caller.label)
    return reply


@endpoint("withdraw")
def withdraw(data: WithdrawRequest, digest: str, deps: Deps, caller: Principal) -> BundleView:
    """Take a bundle out of selection."""
    with deps.sessions.transaction() as session:
        row = bundles.withdraw(Digest.parse(digest), data, by=caller, now=deps.clock(), session=session)
        view = lookup.views_of([row], deps.settings, session)[0]
    records.write_soon(deps, view.digest)
    log.info("bundle-withdrawn", bundle=digest, by=caller.label, reason=data.reason)
    return view


ROUTES = (push, search, get_bundle, find, resolve, move_tag, remove_tag, withdraw)
