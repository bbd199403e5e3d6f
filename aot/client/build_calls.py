"""Builds: submit and follow them, and the worker's side of one attempt."""

from aot.client.calls import Calls
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Tag
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import Blob, Spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import (
    BuildListing,
    BuildLog,
    BuildView,
    CancelRequest,
    ClaimReply,
    ClaimRequest,
    FailRequest,
    ProgressRequest,
    ReleaseRequest,
    RenewReply,
    RetryRequest,
    SubmitReply,
    SubmitRequest,
)
from aot.schema.wire.bundles import PublishReply, PublishRequest
from aot.schema.wire.errors import ErrorBody


class BuildCalls(Calls):
    def submit(self, spec: Spec, *, tags: tuple[Tag, ...] = (), priority: int = 0) -> SubmitReply:
        """Ask for a build; a live build or bundle with the same key answers instead. BlobMissing: upload first."""
        reply: SubmitReply = self.call("submit", body=SubmitRequest(spec=spec, tags=tags, priority=priority))
        return reply

    def list_builds(
        self,
        *,
        namespace: Namespace | None = None,
        name: Name | None = None,
        profile: Name | None = None,
        state: BuildState | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> BuildListing:
        """The newest builds first; `after` continues where a listing's `next` says."""
        query = {"namespace": namespace, "name": name, "profile": profile, "state": state}
        reply: BuildListing = self.call("list_builds", query={**query, "after": after, "limit": limit})
        return reply

    def get_build(self, build: str) -> BuildView:
        """Raises BuildNotFound."""
        reply: BuildView = self.call("get_build", path={"build": build})
        return reply

    def get_build_log(self, build: str, *, after: int | None = None, limit: int | None = None) -> BuildLog:
        """The lines after sequence number `after`, in order."""
        query = {"after": after, "limit": limit}
        reply: BuildLog = self.call("get_build_log", path={"build": build}, query=query)
        return reply

    def cancel(self, build: str, *, reason: str = "") -> BuildView:
        """Stop a build: its worker hears of it when it renews. Raises BuildFinished."""
        reply: BuildView = self.call("cancel", path={"build": build}, body=CancelRequest(reason=reason))
        return reply

    def retry(self, build: str, *, reason: str = "") -> SubmitReply:
        """Build the spec of a build that ended without a bundle again. Raises BuildFinished, BlobMissing."""
        reply: SubmitReply = self.call("retry", path={"build": build}, body=RetryRequest(reason=reason))
        return reply

    def claim(self, worker: Name, *, profiles: tuple[Name, ...], build: str | None = None) -> ClaimReply:
        """Ask for work. Not repeated when the answer is lost: the lease would be taken from ourselves."""
        reply: ClaimReply = self.call("claim", body=ClaimRequest(worker=worker, profiles=profiles, build=build))
        return reply

    def renew(self, build: str) -> RenewReply:
        """Extend the lease of this token's attempt. Raises LeaseLost: the caller must stop."""
        reply: RenewReply = self.call("renew", path={"build": build})
        return reply

    def report_progress(
        self, build: str, *, phase: Phase | None = None, step: str = "", lines: tuple[str, ...] = ()
    ) -> RenewReply:
        """Say where the attempt stands. It extends the lease as `renew` does."""
        request = ProgressRequest(phase=phase, step=step, lines=lines)
        reply: RenewReply = self.call("report_progress", path={"build": build}, body=request)
        return reply

    def fail(self, build: str, *, error: ErrorBody, report: CompileReport | None = None) -> BuildView:
        """End the build without a bundle."""
        request = FailRequest(error=error, report=report)
        reply: BuildView = self.call("fail", path={"build": build}, body=request)
        return reply

    def release(
        self, build: str, *, reason: str, damaged: tuple[Digest, ...] = (), host_fault: bool = False
    ) -> BuildView:
        """Give the build back to the queue. An older registry is not told what it has no words for."""
        request = ReleaseRequest(reason=reason, damaged=damaged, host_fault=host_fault)
        reply: BuildView = self.call("release", path={"build": build}, body=request)
        return reply

    def publish(self, build: str, manifest: str, *, measurements: Blob | None = None) -> PublishReply:
        """End the build with this bundle. Safe to repeat: the same manifest is published once.

        `measurements` are uploaded before, as the bundle's blobs are.

        Raises LeaseLost, BlobMissing; BlobPending is waited for.
        """
        request = PublishRequest(manifest=manifest, measurements=measurements)
        reply: PublishReply = self.call("publish", path={"build": build}, body=request)
        return reply
