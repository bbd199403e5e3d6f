"""Bundles and their blobs: find, resolve, push, tag, withdraw, and the links to bytes."""

from collections.abc import Iterable, Sequence

from aot.client.calls import Calls
from aot.schema.digest import BuildKey, Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.recipe import Route
from aot.schema.spec import Blob, Spec
from aot.schema.state import BundleState
from aot.schema.wire.blobs import DownloadLinksRequest, Link, LinksReply, OpenUploadsRequest
from aot.schema.wire.bundles import (
    BundleListing,
    BundleView,
    FindReply,
    FindRequest,
    FindTarget,
    PublishReply,
    PushRequest,
    ResolveReply,
    SignedManifest,
    TagRequest,
    TagView,
    UntagReply,
    WithdrawRequest,
)
from aot.schema.wire.kernels import KernelListing


class BundleCalls(Calls):
    def open_uploads(self, namespace: Namespace, blobs: Iterable[Blob]) -> tuple[Link, ...]:
        """Links to put those blobs that the namespace lacks."""
        request = OpenUploadsRequest(namespace=namespace, blobs=tuple(blobs))
        reply: LinksReply = self.call("open_uploads", body=request)
        return reply.links

    def get_download_links(self, bundle: Digest, digests: Iterable[Digest] = ()) -> tuple[Link, ...]:
        """Links to get these blobs of the bundle; none named: all of them. Raises BundleWithdrawn."""
        request = DownloadLinksRequest(digests=tuple(digests))
        reply: LinksReply = self.call("get_download_links", path={"digest": bundle}, body=request)
        return reply.links

    def push(self, manifest: str, *, tags: tuple[Tag, ...] = ()) -> PublishReply:
        """Hand in a bundle built elsewhere. It is pending until a worker has proven it."""
        reply: PublishReply = self.call("push", body=PushRequest(manifest=manifest, tags=tags))
        return reply

    def search(
        self,
        *,
        text: str | None = None,
        namespace: Namespace | None = None,
        name: Name | None = None,
        tag: Tag | None = None,
        profile: Name | None = None,
        capability: str | None = None,
        torch: str | None = None,
        build_key: BuildKey | None = None,
        route: Route | None = None,
        guards: tuple[str, ...] = (),
        state: BundleState | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> BundleListing:
        """The newest bundles first; `text` is a part of the name, `after` continues where `next` says.

        `guards`: each KIND or KIND=VALUE (`libc=2.28`, `input.dtype=float16`), put by an artifact of the bundle.
        """
        query = {
            "text": text,
            "namespace": namespace,
            "name": name,
            "tag": tag,
            "profile": profile,
            "capability": capability,
            "torch": torch,
            "build_key": build_key,
            "route": route,
            "guard": guards,
            "state": state,
            "after": after,
            "limit": limit,
        }
        reply: BundleListing = self.call("search", query=query)
        return reply

    def list_kernels(
        self,
        *,
        text: str | None = None,
        capability: str | None = None,
        bundle: Digest | None = None,
        blob: Digest | None = None,
        namespace: Namespace | None = None,
        model: Name | None = None,
        state: BundleState | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> KernelListing:
        """The kernels of the newest bundles first; `model` names the bundle.

        `text` is how the kernel's name begins; with it they come by name. `capability` is where they are to run.
        """
        query = {
            "text": text,
            "capability": capability,
            "bundle": bundle,
            "blob": blob,
            "namespace": namespace,
            "model": model,
            "state": state,
            "after": after,
            "limit": limit,
        }
        reply: KernelListing = self.call("list_kernels", query=query)
        return reply

    def get_bundle(self, bundle: Digest) -> BundleView:
        """Raises BundleNotFound."""
        reply: BundleView = self.call("get_bundle", path={"digest": bundle})
        return reply

    def find(self, specs: Iterable[Spec]) -> tuple[FindTarget, ...]:
        """For each spec, in order: its key, and the live bundle or live build that answers it. One request."""
        reply: FindReply = self.call("find", body=FindRequest(specs=tuple(specs)))
        return reply.targets

    def resolve(self, reference: Reference, *, pins: Sequence[Digest] = ()) -> tuple[SignedManifest, ...]:
        """The live bundles that `reference` names: one a profile for a tag, one for a digest.

        `pins`: of that model, those of these digests that are live, in one request. What comes back is not verified
        yet. Raises TagNotFound, BundleNotFound, BundleWithdrawn.
        """
        return self._resolve(reference, pins).bundles

    def resolve_with_links(self, reference: Reference, *, pins: Sequence[Digest] = ()) -> ResolveReply:
        """As `resolve`, for a node that holds nothing of it: with links to the blobs, where they are few.

        A registry of an older version answers without links. Raises what `resolve` does.
        """
        return self._resolve(reference, pins, links="true")

    def _resolve(self, reference: Reference, pins: Sequence[Digest], **query: str) -> ResolveReply:
        path = {
            "namespace": reference.namespace,
            "name": reference.name,
            "target": ",".join(pins) or reference.digest or reference.tag or "",
        }
        reply: ResolveReply = self.call("resolve", path=path, query=query)
        return reply

    def tag(self, reference: Reference, bundle: Digest, *, expected: Digest | None = None) -> TagView:
        """Move the tag of `reference` to `bundle`; with `expected`, only from there. Raises TagMoved."""
        path = {"namespace": reference.namespace, "name": reference.name, "tag": reference.tag or ""}
        reply: TagView = self.call("tag", path=path, body=TagRequest(bundle=bundle, expected=expected))
        return reply

    def untag(self, reference: Reference, *, expected: Digest | None = None) -> tuple[TagView, ...]:
        """Remove the tag of `reference` for every profile; with `expected`, only where it stands for that bundle.

        Returns where it stood. Raises TagNotFound, TagMoved, and RegistryError of a registry that is too old for it.
        """
        path = {"namespace": reference.namespace, "name": reference.name, "tag": reference.tag or ""}
        reply: UntagReply = self.call("untag", path=path, query={"expected": expected})
        return reply.removed

    def withdraw(self, bundle: Digest, *, reason: str, replacement: Digest | None = None) -> BundleView:
        """Take the bundle out of selection; its bytes are kept."""
        request = WithdrawRequest(reason=reason, replacement=replacement)
        reply: BundleView = self.call("withdraw", path={"digest": bundle}, body=request)
        return reply
