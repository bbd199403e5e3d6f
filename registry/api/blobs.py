"""Links to blobs: the service hands out URLs and carries no bytes."""

from aot.schema.digest import Digest
from aot.schema.wire.blobs import DownloadLinksRequest, LinksReply, OpenUploadsRequest
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import blobs, claims, lookup
from registry.services.tokens import Principal


@endpoint("open_uploads")
def open_uploads(data: OpenUploadsRequest, deps: Deps, caller: Principal) -> LinksReply:
    """Learn which blobs a namespace lacks, with links to put them."""
    blobs.require_upload(data.namespace, by=caller)
    arrived = blobs.observe(blobs.distinct(data.blobs), deps.store, sessions=deps.sessions, namespace=data.namespace)
    now = deps.clock()
    with deps.sessions.transaction() as session:
        claims.require_attempt(by=caller, now=now, session=session)
        missing = blobs.open_uploads(data.blobs, namespace=data.namespace, arrived=arrived, now=now, session=session)
    lives = deps.settings.link_lives
    return LinksReply(links=blobs.upload_links(missing, deps.store, namespace=data.namespace, expires_in=lives))


@endpoint("get_download_links", direct=True)
def get_download_links(data: DownloadLinksRequest, digest: str, deps: Deps, caller: Principal) -> LinksReply:
    """Get links to the blobs of a bundle."""
    bundle = Digest.parse(digest)
    with deps.sessions.glancing() as reader:
        wanted = lookup.links(bundle, data.digests, by=caller, reader=reader)
    deps.uses.note((bundle,), now=deps.clock())
    return LinksReply(links=blobs.download_links(wanted, deps.store, expires_in=deps.settings.link_lives))


ROUTES = (open_uploads, get_download_links)
