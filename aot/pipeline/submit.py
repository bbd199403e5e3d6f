"""Submit and follow: the front half of the first flow."""

import time
from collections.abc import Callable, Sequence

from aot.client import RegistryClient
from aot.errors import AotError, BuildFailed
from aot.pipeline.source import PackedSource
from aot.schema.names import Tag
from aot.schema.spec import Spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView, LogLine, SubmitReply

FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.2, 2.0


def submit_spec(
    client: RegistryClient, spec: Spec, packed: PackedSource, *, tags: Sequence[Tag] = (), priority: int = 0
) -> SubmitReply:
    """Upload what the registry lacks of the source, then submit. The same spec again gives the same build."""
    client.upload_blobs(client.open_uploads(spec.namespace, packed.blobs), packed.paths)
    return client.submit(spec, tags=tuple(tags), priority=priority)


def follow_build(
    client: RegistryClient,
    build: str,
    *,
    on_change: Callable[[BuildView], None] = lambda view: None,
    on_line: Callable[[LogLine], None] | None = None,
    timeout_seconds: float | None = None,
) -> BuildView:
    """Return the build once it is published; `on_change` sees every state and step on the way.

    Raises BuildFailed when it failed, was cancelled, or `timeout_seconds` passed.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause, seen, last_line = FIRST_POLL_SECONDS, None, 0
    while True:
        view = client.get_build(build)
        if on_line is not None:
            for line in client.get_build_log(build, after=last_line).lines:
                on_line(line)
                last_line = line.sequence
        now = (view.state, view.attempt, view.phase, view.step, view.waiting)
        if now != seen:
            seen, pause = now, FIRST_POLL_SECONDS
            on_change(view)
        if view.state is BuildState.PUBLISHED:
            return view
        if view.state.finished:
            raise failure_of(view)
        if deadline is not None and time.monotonic() > deadline:
            raise BuildFailed(
                f"build {build} is still {view.state} after {timeout_seconds:.0f} s",
                hint=view.waiting or f"`aot wait {build}` follows it on",
            )
        time.sleep(pause)
        pause = min(pause * 1.3, LAST_POLL_SECONDS)


def failure_of(view: BuildView) -> AotError:
    """The error of a build that ended without a bundle: its worker's own words where there are any."""
    if view.state is BuildState.CANCELLED:
        return BuildFailed(f"build {view.id} of {view.name} was cancelled", hint="submit it again if that was wrong")
    if view.error is None:
        return BuildFailed(f"build {view.id} of {view.name} failed", hint=f"`aot show {view.id}` has its log")
    error = view.error
    return BuildFailed(
        f"build {view.id} of {view.name} failed: {error.message}",
        hint=error.hint or f"`aot show {view.id}` has its log",
        details={"error": {"code": error.code, "message": error.message, "details": error.details}},
    )
