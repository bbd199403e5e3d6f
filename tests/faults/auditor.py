"""After a campaign, with every fault ended: is everything that was promised true?

builds    every accepted build has ended, once; no build has two bundles, or a bundle and another end; none failed,
          since every program of a campaign compiles, but where hosts had no disk in too many attempts at one
bundles   every visible one is complete in the store, its bytes are those of its digests, a trusted key signed it
records   every visible bundle and every tag has one that says what its row says, signed by a trusted key
orphans   after the grace period, nothing is left in the store that no bundle needs, and no upload in parts is open
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select

from aot.errors import AotError
from aot.schema.manifest import decode_manifest
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.errors import ErrorBody
from aot.trust import TrustedKeys, verify
from registry.clock import utc_now
from registry.db.models import BuildRow, BundleRow, MeasurementRow, TagRow
from registry.db.records import RECORDED_STATES
from registry.deps import Deps, build_deps
from registry.services import records
from registry.services.retention import retain
from registry.settings import Settings
from registry.storage.parts import KeepsIncoming
from tests.faults.backends import ACCESS, SECRET
from tests.faults.clients import Accepted
from tests.faults.fleet import Fleet
from tests.faults.stacks import Stack
from worker.run import HOST_FAILED, MOST_HOST_FAULTS

ENDS = {"bundle-published": "published", "build-failed": "failed", "build-cancelled": "cancelled"}


@dataclass
class Auditor:
    fleet: Fleet
    stack: Stack
    accepted: Accepted
    trusted: TrustedKeys

    def audit(self) -> None:
        """Write what is wrong into the ledger."""
        # boto3 looks for credentials in the environment, as in the registry's own processes.
        os.environ.update({"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET})
        deps = self._deps()
        try:
            self._builds(deps)
            self._ends_told()
            named = self._bundles(deps)
            self._records(deps)
            self._orphans(deps, named)
        finally:
            deps.sessions.close()

    def _deps(self) -> Deps:
        return build_deps(Settings.from_environ(self.fleet.environ("auditor", direct=True)))

    def _builds(self, deps: Deps) -> None:
        ledger = self.fleet.ledger
        with deps.sessions.reading() as session:
            rows = {row.id: row for row in session.scalars(select(BuildRow))}
            counts: dict[Any, int] = dict(
                session.execute(
                    select(BundleRow.build, func.count()).where(BundleRow.build.is_not(None)).group_by(BundleRow.build)
                ).all()
            )
        for build in self.accepted.builds:
            row = rows.get(build)
            if row is None:
                ledger.violated(f"build {build} was accepted and is gone")
            elif not row.state.finished:
                ledger.violated(f"build {build} has not ended: {row.state} {row.phase} {row.waiting} {row.setback}")
        for build, row in rows.items():
            wanted = 1 if row.state is BuildState.PUBLISHED else 0
            if counts.get(build, 0) != wanted or (row.bundle is not None) != bool(wanted):
                ledger.violated(f"build {build} is {row.state} and has {counts.get(build, 0)} bundles")
            if row.state is BuildState.FAILED and not (row.host_faults + 1 >= MOST_HOST_FAULTS and _of_host(row.error)):
                ledger.violated(f"build {build} was lost: {row.error.message if row.error else row.setback}")
            if build in self.accepted.cancelled and row.state is not BuildState.CANCELLED:
                ledger.violated(f"build {build} was cancelled, and is {row.state}")
            ledger.saw(f"auditor: builds {row.state}" + (f" ({row.error.code})" if row.error else ""))
            ledger.saw("auditor: attempts", row.attempt)
            if build not in self.accepted.builds:
                ledger.saw("auditor: builds whose acceptance got lost on its way to the client")

    def _ends_told(self) -> None:
        """No two replicas told two different ends of one build."""
        told: dict[str, set[str]] = {}
        for name, member in self.fleet.members.items():
            if not name.startswith("replica"):
                continue
            for line in member.log.read_text(errors="replace").splitlines():
                event = _event(line)
                if (end := ENDS.get(str(event.get("event")))) is not None:
                    what = f"published {event.get('bundle')}" if end == "published" else end
                    told.setdefault(str(event.get("build")), set()).add(what)
        for build, ends in told.items():
            if len(ends) > 1:
                self.fleet.ledger.violated(f"build {build} ended twice: {sorted(ends)}")
        self.fleet.ledger.saw("auditor: ends told by replicas", len(told))
        if not told:
            self.fleet.ledger.violated("no replica told of any end: the comparison above has seen nothing")

    def _bundles(self, deps: Deps) -> set[str]:
        """Check what is visible; return the digests that are needed for bundles."""
        named: set[str] = set()
        with deps.sessions.reading() as session:
            rows = session.scalars(select(BundleRow)).all()
            # What tuning measured for a bundle is kept beside it.
            named |= {digest.hex for digest in session.scalars(select(MeasurementRow.blob))}
        for row in rows:
            manifest = decode_manifest(row.manifest)
            named |= {blob.digest.hex for blob in manifest.blobs}
            if row.state is not BundleState.LIVE:
                continue
            self.fleet.ledger.saw("auditor: visible bundles read whole")
            if row.damage:
                self.fleet.ledger.violated(f"bundle {row.digest} is damaged: {row.damage}")
            if f"sha256:{hashlib.sha256(row.manifest).hexdigest()}" != row.digest:
                self.fleet.ledger.violated(f"bundle {row.digest} has a manifest of another digest")
            try:
                assert row.envelope is not None
                verify(row.envelope, self.trusted, manifest=row.digest, namespace=row.namespace, name=row.name)
            except (AotError, AssertionError) as error:
                self.fleet.ledger.violated(f"bundle {row.digest} is not signed: {error}")
            for blob in manifest.blobs:
                found = self.stack.read(blob.digest.hex)
                if found is None or hashlib.sha256(found).hexdigest() != blob.digest.hex:
                    self.fleet.ledger.violated(f"bundle {row.digest} is visible without the bytes of {blob.digest}")
        return named

    def _records(self, deps: Deps) -> None:
        while records.write_due(deps):
            pass  # what the sweepers, which still run, would write next
        with deps.sessions.reading() as session:
            bundles = session.scalars(select(BundleRow).where(BundleRow.state.in_(RECORDED_STATES))).all()
            tags = session.scalars(select(TagRow)).all()
        for bundle in bundles:
            self._record(records.bundle_name(bundle.digest), records.bundle_record(bundle), records.read_bundle, deps)
        for tag in tags:
            self._record(records.tag_name(tag), records.tag_record(tag), records.read_tag, deps)
        self.fleet.ledger.saw("auditor: records verified", len(bundles) + len(tags))

    def _record(self, name: str, wanted: object, read: Callable[..., object], deps: Deps) -> None:
        try:
            found = read(deps.records.find(name) or b"", keys=self.trusted)
        except AotError as error:
            self.fleet.ledger.violated(f"the record {name} does not verify: {error}")
            return
        if found != wanted:
            self.fleet.ledger.violated(f"the record {name} says {found}, its row {wanted}")

    def _orphans(self, deps: Deps, named: set[str]) -> None:
        """Let the grace period pass, and see that what nobody names is gone and nothing else."""
        grace = deps.settings.grace_of_blobs + timedelta(minutes=1)
        before = self.stack.digests()
        for times in (1, 2, 3):  # condemn; delete; delete what was half deleted when a sweeper died
            retain(replace(deps, clock=lambda times=times: utc_now() + times * grace))
        after = self.stack.digests()
        if left := after - named:
            self.fleet.ledger.violated(f"{len(left)} orphans after the grace period, the first {min(left)}")
        if lost := named - after:
            self.fleet.ledger.violated(f"{len(lost)} blobs of bundles were deleted, the first {min(lost)}")
        if isinstance(deps.store, KeepsIncoming):
            if still := [upload.digest for upload in deps.store.part_uploads()]:
                self.fleet.ledger.violated(f"{len(still)} uploads in parts are open, the first of {still[0]}")
            if left := [arrival.digest for arrival in deps.store.arrivals()]:
                self.fleet.ledger.violated(f"{len(left)} uploads became no blob and are there, the first of {left[0]}")
        self.fleet.ledger.saw("auditor: orphans removed by retention", len(before - after))


def _of_host(error: ErrorBody | None) -> bool:
    return error is not None and error.code == AotError.code and error.message.startswith(f"{HOST_FAILED}: ")


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
