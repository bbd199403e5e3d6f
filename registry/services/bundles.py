"""Bundles become visible, or stop being so: publish, push, withdraw.

Last step of the flow submit → compile → publish (design.md, section 5). A worker sends the manifest with the token of
its attempt. Lease, manifest and proof are checked, every blob is confirmed, the registry signs the manifest's digest,
and bundle, tags and build change in the caller's one transaction. Bundles built elsewhere are pushed: they stay
pending, with a build that proves them again, and its proof is published as a bundle of its own that replaces them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from aot.errors import BundleNotFound, Conflict, Forbidden, InvalidProfile
from aot.keys import changes_between, factors_of, queue_for
from aot.schema.devices import is_of_catalogue
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, Statement, decode_manifest
from aot.schema.names import Tag
from aot.schema.profile import Profile, kernel_profile_name
from aot.schema.spec import Blob, KernelSource, Spec
from aot.schema.state import BuildEvent, BuildState, BundleState
from aot.schema.wire.builds import Ticket
from aot.schema.wire.bundles import PublishReply, PushRequest, WithdrawRequest
from aot.schema.wire.workers import Scope
from aot.trust import SigningKey, sign
from registry.db import builds as build_rows
from registry.db import bundles as rows
from registry.db import fleet as fleet_rows
from registry.db.models import BundleRow
from registry.db.session import hold_turn
from registry.services import blobs, builds, claims, guards, kernels, measurements, profiles, proof, tags, waiting
from registry.services.contents import artifacts_of, files_of, worst_speedup
from registry.services.proof import Received
from registry.services.requests import check_spec
from registry.services.tokens import Principal
from registry.services.unions import put_tags, put_tags_again

PUSH_PRIORITY = 0


@dataclass(frozen=True)
class Pushed:
    """`ticket` is to be sent to `queue` once the transaction is committed; None: nothing to prove any more."""

    reply: PublishReply
    ticket: Ticket | None = None
    queue: str = ""


def publish(
    build: str,
    received: Received,
    *,
    by: Principal,
    arrived: blobs.Arrived,
    measurements_sent: tuple[Blob, ...] = (),
    keys: Sequence[SigningKey],
    now: datetime,
    session: Session,
) -> PublishReply:
    """Make the bundle live and end the build. The same manifest sent again gets the same reply.

    Raises Forbidden, LeaseLost, BuildFinished, InvalidInput, QualificationFailed, what `blobs.confirm` raises, and
    TagMoved for a union that lacks entries of what its tag stands for.
    """
    manifest = received.manifest
    row = claims.find_own(build, by=by, session=session)
    if row.state is BuildState.PUBLISHED and (row.bundle, row.attempt) == (received.digest, by.attempt):
        return PublishReply(bundle=received.digest, state=BundleState.LIVE, build=row.id)
    claims.require_held(row, by=by, now=now)
    proof.require_answer(manifest, spec=row.spec, factors=row.factors, build_key=row.build_key)
    proof.require_sound(manifest)
    proof.require_proven(manifest)
    pushed = rows.find_bundle(row.requalify, session) if row.requalify else None
    if pushed is not None:
        proof.require_same_artifacts(manifest, decode_manifest(pushed.manifest))
    wanted = (*manifest.blobs, *measurements_sent)
    blobs.confirm(wanted, namespace=row.namespace, arrived=arrived, now=now, session=session)
    bundle = insert(received, state=BundleState.LIVE, envelope=_signed(received, keys), now=now, session=session)
    bundle.build = row.id
    for measured in measurements_sent:
        measurements.add(received, measured, session)
    done = {"bundle": received.digest, "report": manifest.compile_report, "finished_at": now}
    if not build_rows.advance_build(row, BuildEvent.PUBLISH, session=session, **done):
        raise claims.lease_lost(row)
    tags.hold(row.tags, bundle=bundle, also=() if pushed is None else (pushed.digest,), session=session)
    if pushed is not None:
        _replace(pushed, by=received.digest, now=now, session=session)
    put_tags(row.tags, bundle=bundle, spec=row.spec, now=now, session=session)
    return PublishReply(bundle=received.digest, state=BundleState.LIVE, build=row.id)


def push(
    request: PushRequest,
    received: Received,
    *,
    by: Principal,
    arrived: blobs.Arrived,
    now: datetime,
    session: Session,
) -> Pushed:
    """Take in a bundle built elsewhere: pending, with a build that proves it again.

    Pushed twice is once, and so is the same code under another manifest (built again, at another time): what is
    pending or live is answered, and the tags are its own from then on, but for those that a union would take entries
    from. What was withdrawn or rejected is not: it may be tried again. Its source and weights must be uploaded too,
    because the proof compares with eager.

    Raises Forbidden, InvalidInput, ProfileNotFound, Conflict, and what `blobs.confirm` raises.
    """
    manifest = received.manifest
    by.require(Scope.PUSH, manifest.namespace)
    proof.require_sound(manifest)
    check_spec(manifest.spec)
    profile = _profile_of(manifest, now=now, session=session)
    _require_current(manifest, profile)
    # Of two that push the same at once, the second finds the first.
    hold_turn(session.connection(), f"push {manifest.namespace}/{manifest.name}")
    known = rows.find_bundle(received.digest, session)
    there = known if known is not None and known.state is not BundleState.REJECTED else _find_equal(manifest, session)
    if there is not None:
        return Pushed(_pushed_before(there, manifest.spec, more=request.tags, now=now, session=session))
    wanted = blobs.distinct((*manifest.blobs, *manifest.spec.blobs))
    blobs.confirm(wanted, namespace=manifest.namespace, arrived=arrived, now=now, session=session)
    build = builds.new_build(manifest.spec, profile=profile, tags=request.tags, priority=PUSH_PRIORITY, by=by, now=now)
    build.requalify = received.digest
    if isinstance(manifest.spec.source, KernelSource) or profiles.nobody_ran(manifest, now=now, session=session):
        build.waiting = waiting.not_run(profile)
    if known is not None:
        _reopen(known, session=session)
    else:
        insert(received, state=BundleState.PENDING, envelope=None, now=now, session=session)
    if not build_rows.insert(build, session):
        raise Conflict(f"{received.digest} is being pushed by somebody else", hint="send the request again")
    return Pushed(
        PublishReply(bundle=received.digest, state=BundleState.PENDING, build=build.id),
        Ticket(build=build.id),
        queue_for(profile),
    )


def withdraw(digest: Digest, request: WithdrawRequest, *, by: Principal, now: datetime, session: Session) -> BundleRow:
    """Take a live bundle out of selection; its bytes stay. Withdrawn twice is once, and the first reason stays.

    Raises BundleNotFound, also for a replacement that is no live bundle of the same model, and Conflict.
    """
    row = rows.find_bundle(digest, session)
    if row is None or not by.sees(row.namespace):
        raise bundle_not_found(digest)
    by.require(Scope.TAG, row.namespace)
    if row.state is BundleState.WITHDRAWN:
        return row
    tags.require_live(row)
    if request.replacement is not None:
        other = rows.find_bundle(request.replacement, session)
        if (
            other is None
            or other.state is not BundleState.LIVE
            or other.digest == digest
            or _model(other) != _model(row)
        ):
            raise BundleNotFound(
                f"the replacement {request.replacement} is no other live bundle of {row.namespace}/{row.name}",
                hint="name a live bundle of the same model, or none",
            )
    changes = {"withdrawn_at": now, "withdrawn_reason": request.reason, "replacement": request.replacement}
    changes["recorded_at"] = None
    rows.advance_bundle(row, BundleState.WITHDRAWN, session=session, **changes)
    return row


def bundle_not_found(digest: Digest) -> BundleNotFound:
    return BundleNotFound(
        f"there is no bundle {digest}", hint="search for bundles; it may lie in a namespace you cannot see"
    )


def require_namespace(received: Received, *, by: Principal) -> None:
    """Raises Forbidden before the store is asked about a manifest that `by` may not send anyway."""
    if not by.sees(received.manifest.namespace):
        raise Forbidden(
            f"the token is not for the namespace {received.manifest.namespace}",
            hint="publish and push to a namespace of the token's",
        )


def _model(row: BundleRow) -> tuple[str, str]:
    return row.namespace, row.name


def _signed(received: Received, keys: Sequence[SigningKey]) -> Envelope:
    manifest = received.manifest
    statement = Statement(
        manifest=received.digest,
        namespace=manifest.namespace,
        name=manifest.name,
        build_key=manifest.build_key,
    )
    return sign(statement, *keys)


def _profile_of(manifest: Manifest, *, now: datetime, session: Session) -> Profile:
    """The registered profile; of code that was built without its card, or for a CPU that no worker has, the one that
    this push makes known.

    Only that card's name is taken, so nobody can stand in the way of a worker's profile. Raises ProfileNotFound,
    InvalidProfile.
    """
    profile = manifest.profile
    if not isinstance(manifest.spec.source, KernelSource):
        if profile.is_cpu_target:
            return profiles.put_cpu_target(profile.name, now=now, session=session)
        if manifest.qualification.not_run and is_of_catalogue(profile):
            return profiles.put_card(profile, now=now, session=session)
        return profiles.get_worker_profile(profile.name, now=now, session=session)
    wanted = kernel_profile_name(profile.capability, profile.toolchain.triton or "none")
    if profile.name != wanted or profile.device is not None:
        raise InvalidProfile(
            f"kernels for {profile.capability} belong to the profile {wanted}, found {profile.name}",
            hint="build them with `aot kernel build`",
        )
    fleet_rows.insert_profile(profile, now=now, session=session)
    return profiles.get_profile(profile.name, now=now, session=session)


def _require_current(manifest: Manifest, profile: Profile) -> None:
    changes = changes_between(manifest.factors, factors_of(manifest.spec, profile))
    if changes:
        first = changes[0]
        raise Conflict(
            f"the bundle was built for another {profile.name}: {first.name} is {first.before}, the workers have "
            f"{first.after}",
            hint="build it for the profile as `list profiles` shows it",
            details={"changes": [change.name for change in changes]},
        )


def _find_equal(manifest: Manifest, session: Session) -> BundleRow | None:
    """The bundle with the same code under the same name, live rather than pending."""
    asked = (manifest.namespace, manifest.name, manifest.build_key)
    found = rows.find_of_key(asked, (BundleState.LIVE, BundleState.PENDING), session)
    equal = [row for row in found if proof.is_same_code(manifest, decode_manifest(row.manifest))]
    return min(equal, key=lambda row: row.state is not BundleState.LIVE, default=None)


def _pushed_before(
    row: BundleRow, spec: Spec, *, more: tuple[Tag, ...], now: datetime, session: Session
) -> PublishReply:
    if row.state is BundleState.PENDING:
        build = build_rows.find_live_requalify(row.digest, session)
        if build is not None:
            builds.add_tags(build, more, session=session)
        return PublishReply(bundle=row.digest, state=row.state, build=build.id if build else None)
    tags.require_live(row)
    put_tags_again(more, bundle=row, spec=spec, now=now, session=session)
    return PublishReply(bundle=row.digest, state=row.state, build=row.build)


def _reopen(row: BundleRow, *, session: Session) -> None:
    """A rejected bundle may be proven again, unless its proven form is there already."""
    if row.replacement is not None:
        raise Conflict(
            f"the bundle {row.digest} was proven before, as {row.replacement}",
            hint=f"use {row.replacement}",
            details={"replacement": row.replacement},
        )
    rows.advance_bundle(row, BundleState.PENDING, session=session, withdrawn_reason="", withdrawn_at=None)


def _replace(pushed: BundleRow, *, by: Digest, now: datetime, session: Session) -> None:
    # Its proof changes the manifest, so the proven bundle is another one; the pushed digest leads to it.
    rows.advance_bundle(
        pushed,
        BundleState.REJECTED,
        session=session,
        replacement=by,
        withdrawn_reason="replaced by its proven form",
        withdrawn_at=now,
    )


def insert(
    received: Received, *, state: BundleState, envelope: Envelope | None, now: datetime, session: Session
) -> BundleRow:
    """Add the bundle with the index of its contents. Raises Conflict where it exists."""
    manifest = received.manifest
    row = BundleRow(
        digest=received.digest,
        namespace=manifest.namespace,
        name=manifest.name,
        profile=manifest.profile.name,
        build_key=manifest.build_key,
        build=None,
        manifest=received.content,
        envelope=envelope,
        state=state,
        capability=manifest.profile.capability,
        torch=manifest.profile.toolchain.torch,
        size_bytes=manifest.size_bytes,
        frozen=manifest.frozen,
        speedup=worst_speedup(manifest.artifacts),
        created_at=now,
        published_at=now if state is BundleState.LIVE else None,
        withdrawn_reason="",
    )
    inserted = rows.insert_bundle(
        row,
        artifacts=artifacts_of(received),
        files=files_of(received),
        kernels=kernels.rows_of(received.digest, manifest),
        guards=guards.rows_of(received.digest, manifest),
        session=session,
    )
    if not inserted:
        raise Conflict(f"the bundle {received.digest} exists already", hint="its digest is that of its manifest")
    return row
