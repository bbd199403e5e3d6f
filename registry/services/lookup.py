"""Bundles as clients look for them: resolve and links at pod start, find in CI, search and get for people.

`resolve` and `links` are all that a pod asks (design.md, section 5); on a cold node the first brings the links along.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from aot.errors import BlobNotFound, InvalidInput, StorageUnavailable, TagNotFound
from aot.keys import factors_of, key_of
from aot.schema.capability import Capability
from aot.schema.digest import BuildKey, Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Name, Namespace, Tag
from aot.schema.recipe import Route
from aot.schema.spec import Blob, Spec
from aot.schema.state import BundleState
from aot.schema.wire.bundles import (
    BundleListing,
    BundleView,
    FindReply,
    FindRequest,
    FindTarget,
    SignedManifest,
)
from aot.schema.wire.workers import Scope
from registry.db import builds as build_rows
from registry.db import bundles as rows
from registry.db import hot
from registry.db import tags as tag_rows
from registry.db.models import BundleRow
from registry.db.retention import expiry
from registry.services import guards as guard_index
from registry.services import unions
from registry.services.answers import find_answers, wants_tuning
from registry.services.builds import view_of
from registry.services.bundles import bundle_not_found
from registry.services.paging import cursor_of, limit_of, parse_cursor
from registry.services.profiles import get_profile
from registry.services.tags import withdrawn
from registry.services.tokens import Principal
from registry.settings import Settings

MOST_SPECS = 500
MOST_DIGESTS = 100  # one lock's profiles of one model
UNSIGNED = Envelope(payload="", signatures=())
"""Around a pushed bundle, which only the worker that is to prove it may read."""


class Found(NamedTuple):
    bundles: tuple[SignedManifest, ...]
    blobs: tuple[Blob, ...]  # of all of them, each once; none where they are more than were asked for


def resolve(
    namespace: Namespace, name: Name, target: str, *, most_blobs: int = 0, by: Principal, reader: hot.Reader
) -> Found:
    """The live bundles that a tag stands for, one a profile; or those of one digest, or several between commas.

    With their blobs where these are `most_blobs` at most.

    Raises TagNotFound or BundleNotFound, also for what `by` may not read, and BundleWithdrawn where nothing that the
    target stands for is live any more.
    """
    if target.startswith("sha256:"):
        digests = _parse_digests(target)
        # A pending bundle is readable by none but the worker that is to prove it.
        usable = {BundleState.LIVE, BundleState.PENDING}
        found = tuple(
            bundle
            for bundle in hot.resolve_pinned(namespace, name, digests, most_blobs=most_blobs, reader=reader)
            if _may_resolve(bundle, namespace, by=by, reader=reader)
        )
        missing = bundle_not_found(digests[0])
    else:
        tag = Tag.parse(target)
        missing = TagNotFound(f"there is no {namespace}/{name}:{tag}", hint="search for bundles, or build one")
        if not _reads_live(namespace, by=by, reader=reader):
            raise missing
        usable = {BundleState.LIVE}
        found = hot.resolve_tag(namespace, name, tag, most_blobs=most_blobs, reader=reader)
    live = tuple(bundle for bundle in found if bundle.state in usable and bundle.damage is None)
    if live:
        named = tuple(dict.fromkeys(blob for bundle in live for blob in bundle.blobs))
        return Found(tuple(map(_manifest_of, live)), named if len(named) <= most_blobs else ())
    for bundle in found:
        if bundle.state in usable and bundle.damage is not None:
            raise _damaged(bundle.digest, bundle.damage)
        if bundle.state is BundleState.WITHDRAWN:
            raise withdrawn(bundle.digest, reason=bundle.withdrawn_reason, replacement=bundle.replacement)
    raise missing


def links(digest: Digest, wanted: Sequence[Digest], *, by: Principal, reader: hot.Reader) -> tuple[Blob, ...]:
    """The blobs of the bundle to link to: those wanted, or all of them.

    Raises BundleNotFound, BundleWithdrawn, StorageUnavailable for damaged ones, and BlobNotFound for a digest that the
    bundle does not name.
    """
    listed = hot.blobs_of(digest, reader)
    if listed is None:
        raise bundle_not_found(digest)
    if not _reads(listed.state, digest, listed.namespace, by=by, reader=reader):
        raise bundle_not_found(digest)
    if listed.state is BundleState.WITHDRAWN:
        raise withdrawn(digest, reason=listed.withdrawn_reason, replacement=listed.replacement)
    if listed.damage is not None:
        raise _damaged(digest, listed.damage)
    if not wanted:
        return listed.blobs
    known = {blob.digest: blob for blob in listed.blobs}
    strangers = [blob for blob in wanted if blob not in known]
    if strangers:
        raise BlobNotFound(
            f"the bundle {digest} does not name {strangers[0]}",
            hint="ask for blobs that its manifest lists",
            details={"digests": strangers},
        )
    return tuple(known[blob] for blob in dict.fromkeys(wanted))


def find(request: FindRequest, *, by: Principal, now: datetime, session: Session) -> FindReply:
    """For each spec its key, and the live bundle or the live build that answers it as it would answer its submission.

    What lies in a namespace that `by` may not read is not found. Raises ProfileNotFound naming the known ones.
    """
    if len(request.specs) > MOST_SPECS:
        raise InvalidInput(f"wanted at most {MOST_SPECS} specs, found {len(request.specs)}", hint="ask several times")
    names = dict.fromkeys(spec.profile for spec in request.specs)
    profiles = {name: get_profile(name, now=now, session=session) for name in names}
    asked = []
    for spec in request.specs:
        factors = factors_of(spec, profiles[spec.profile])
        asked.append((spec, factors, key_of(factors)))
    readable = {
        _asked(spec, key): wants_tuning(spec, profiles[spec.profile])
        for spec, _, key in asked
        if by.sees(spec.namespace)
    }
    answers = find_answers(readable, session)
    bundles = {found.digest: _manifest_of(found) for found in hot.resolve_digests(set(answers.values()), session)}
    live = build_rows.live_builds([one for one in readable if one not in answers], session)
    targets = []
    for spec, factors, key in asked:
        bundle, build = answers.get(_asked(spec, key)), live.get(_asked(spec, key))
        targets.append(
            FindTarget(
                build_key=key,
                factors=factors,
                bundle=bundles.get(bundle) if bundle else None,
                build=view_of(build) if build else None,
            )
        )
    return FindReply(targets=tuple(targets))


def get(digest: Digest, *, by: Principal, settings: Settings, session: Session) -> BundleView:
    """The bundle in whatever state. Raises BundleNotFound, also for what `by` may not read."""
    row = rows.find_bundle(digest, session)
    if row is None or not by.may(Scope.READ, row.namespace):
        raise bundle_not_found(digest)
    return views_of([row], settings, session)[0]


def search(
    *,
    namespace: Namespace | None = None,
    name: Name | None = None,
    profile: Name | None = None,
    capability: Capability | None = None,
    torch: str | None = None,
    state: BundleState | None = None,
    build_key: BuildKey | None = None,
    text: str | None = None,
    tag: Tag | None = None,
    route: Route | None = None,
    guards: Sequence[str] = (),
    after: str | None = None,
    limit: int | None = None,
    by: Principal,
    settings: Settings,
    session: Session,
) -> BundleListing:
    """The bundles that `by` may read and that match everything given, newest first. `text`: a part of the name;
    `guards`: KIND or KIND=VALUE, each put by one of its artifacts.
    """
    size = limit_of(limit)
    found = rows.search_bundles(
        session,
        where={
            "namespace": namespace,
            "name": name,
            "profile": profile,
            "capability": capability,
            "torch": torch,
            "state": state,
            "build_key": build_key,
        },
        text=text,
        tag=tag,
        route=route,
        guards=guard_index.parse(guards),
        namespaces=by.namespaces,
        after=parse_cursor(after) if after is not None else None,
        limit=size + 1,
    )
    page = found[:size]
    following = cursor_of(page[-1].created_at, page[-1].digest) if len(found) > size else None
    return BundleListing(bundles=tuple(views_of(page, settings, session)), next=following)


def views_of(found: Sequence[BundleRow], settings: Settings, session: Session) -> list[BundleView]:
    digests = [row.digest for row in found]
    tags = tag_rows.tags_of(digests, session)
    outlines = rows.outlines_of(digests, session)
    pending = [row.digest for row in found if row.state is BundleState.PENDING]
    proving = build_rows.live_requalifying(pending, session)
    return [
        BundleView(
            digest=row.digest,
            namespace=row.namespace,
            name=row.name,
            profile=row.profile,
            build_key=row.build_key,
            state=row.state,
            capability=row.capability,
            torch=row.torch,
            routes=outlines[row.digest][0],
            regions=outlines[row.digest][1],
            size_bytes=row.size_bytes,
            frozen=row.frozen,
            created_at=row.created_at,
            published_at=row.published_at,
            withdrawn_reason=row.withdrawn_reason or row.damage or "",
            replacement=row.replacement,
            tags=tags.get(row.digest, ()),
            speedup=row.speedup,
            # What the build that is to prove it waits for; nothing while one works on it.
            waiting=view_of(proving[row.digest]).waiting if row.digest in proving else "",
            expires_at=None if row.digest in tags else expiry(row, keep=settings.keep, keep_out=settings.keep_out),
        )
        for row in found
    ]


def _parse_digests(target: str) -> tuple[Digest, ...]:
    digests = tuple(dict.fromkeys(Digest.parse(digest) for digest in target.split(",")))
    if len(digests) > MOST_DIGESTS:
        raise InvalidInput(f"wanted at most {MOST_DIGESTS} digests, found {len(digests)}", hint="ask several times")
    return digests


def _damaged(digest: Digest, reason: str) -> StorageUnavailable:
    # Not withdrawn: who holds its bytes may go on using them.
    return StorageUnavailable(
        f"the bytes of the bundle {digest} cannot be had: {reason}",
        hint="upload them again from a cache or build it again; until then it is out of selection",
        details={"bundle": digest},
    )


def _asked(spec: Spec, key: BuildKey) -> build_rows.Asked:
    return spec.namespace, spec.name, key


def _manifest_of(found: hot.Resolved) -> SignedManifest:
    return SignedManifest(
        digest=found.digest,
        manifest=found.manifest.decode(),
        envelope=found.envelope or UNSIGNED,
        tags=found.tags,
    )


def _may_resolve(found: hot.Resolved, namespace: Namespace, *, by: Principal, reader: hot.Reader) -> bool:
    return _reads(found.state, found.digest, namespace, by=by, reader=reader)


def _reads_live(namespace: Namespace, *, by: Principal, reader: hot.Reader) -> bool:
    """Whether `by` reads what is live: with the scope, or as the worker that joins a union with what is there."""
    if by.may(Scope.READ, namespace):
        return True
    if by.build is None or not by.sees(namespace):
        return False
    attempt = hot.find_attempt(by.build, by.attempt, reader)
    return attempt is not None and unions.is_union(attempt.spec)


def _reads(state: BundleState, digest: Digest, namespace: Namespace, *, by: Principal, reader: hot.Reader) -> bool:
    """Readers of the namespace read live and withdrawn bundles; the worker that proves a pushed one reads that one."""
    if state in (BundleState.LIVE, BundleState.WITHDRAWN):
        return _reads_live(namespace, by=by, reader=reader)
    if state is BundleState.PENDING and by.build is not None:
        attempt = hot.find_attempt(by.build, by.attempt, reader)
        return attempt is not None and attempt.requalify == digest
    return False
