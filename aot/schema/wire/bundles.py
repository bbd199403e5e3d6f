"""Bundles on the wire: publish, resolve, find, tag, withdraw.

A manifest travels as text, never as a nested object: its digest is over exactly these bytes.
"""

from datetime import datetime

from aot.schema.codec import Document, Response
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.spec import Blob, Spec
from aot.schema.state import BundleState
from aot.schema.wire.blobs import Link
from aot.schema.wire.builds import BuildView
from aot.schema.wire.signed import SignedManifest


class ResolveReply(Response, kw_only=True):
    """A tag may stand for one bundle a profile; a digest for exactly one.

    `links`: where the request asked for them, to every blob of these bundles, each once; none where they are many.
    """

    bundles: tuple[SignedManifest, ...]
    links: tuple[Link, ...] = ()


class PublishRequest(Document, kw_only=True):
    """The end of a build, sent with the token of its attempt.

    `measurements`: what tuning knows by now, uploaded as the bundle's blobs are, for later builds of the namespace.
    Only where the claim said that the registry keeps them: one of an older version refuses the field.
    """

    manifest: str
    measurements: Blob | None = None


class PushRequest(Document, kw_only=True):
    """A bundle built elsewhere: pending until a worker of a fitting profile has proven it again."""

    manifest: str
    tags: tuple[Tag, ...] = ()


class PublishReply(Response, kw_only=True):
    bundle: Digest
    state: BundleState
    build: str | None = None  # of a pushed bundle: the build that will prove it


class FindRequest(Document, kw_only=True):
    """Ask for the bundles that answer these specs, all at once."""

    specs: tuple[Spec, ...]


class FindTarget(Response, kw_only=True):
    """The answer for one spec: a live bundle, or a live build, or neither."""

    build_key: BuildKey
    factors: tuple[Factor, ...]
    bundle: SignedManifest | None = None
    build: BuildView | None = None


class FindReply(Response, kw_only=True):
    targets: tuple[FindTarget, ...]


class BundleView(Response, kw_only=True):
    digest: Digest
    namespace: Namespace
    name: Name
    profile: Name
    build_key: BuildKey
    state: BundleState
    capability: str
    torch: str
    routes: tuple[str, ...]
    regions: int
    size_bytes: int
    frozen: bool
    created_at: datetime
    published_at: datetime | None = None
    withdrawn_reason: str = ""
    replacement: Digest | None = None
    tags: tuple[Tag, ...] = ()
    waiting: str = ""  # of a pending bundle: why it has not been proven yet
    speedup: float | None = None  # eager median / compiled median, worst over the coverages; None: not measured
    expires_at: datetime | None = None  # it goes then unless it is used; None: a tag pins it, or it waits for its proof


class BundleListing(Response, kw_only=True):
    bundles: tuple[BundleView, ...]
    next: str | None = None


class TagRequest(Document, kw_only=True):
    """Move `tag` to `bundle`. With `expected`, only if it stands there now (all zero digest: only if it is new)."""

    bundle: Digest
    expected: Digest | None = None


class TagView(Response, kw_only=True):
    reference: Reference
    bundle: Digest
    profile: Name
    moved_at: datetime


class UntagReply(Response, kw_only=True):
    """Where the tag stood until now: one bundle a profile, in the order of the profiles."""

    removed: tuple[TagView, ...]


class WithdrawRequest(Document, kw_only=True):
    reason: str
    replacement: Digest | None = None
