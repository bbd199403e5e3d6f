"""Submit and follow: the front half of the first flow."""

import time
from collections.abc import Callable, Sequence

from aot.client import RegistryClient
from aot.errors import AotError, BuildFailed, BuildUnfinished, NotARegistry, Unavailable
from aot.pipeline import pending
from aot.pipeline.source import PackedSource
from aot.schema.names import Tag
from aot.schema.spec import Spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import NOT_RUN, BuildView, LogLine, SubmitReply

FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.2, 2.0
# A registry that restarts must not end a CI job that follows an hour's build.
AWAY_SECONDS = 60.0


def submit_spec(
    client: RegistryClient, spec: Spec, packed: PackedSource, *, tags: Sequence[Tag] = (), priority: int = 0
) -> SubmitReply:
    """Upload what the registry lacks of the source, then submit. The same spec again gives the same build."""

    def upload() -> None:
        pending.upload(client, spec.namespace, packed.blobs, packed.paths)

    def submit() -> SubmitReply:
        return client.submit(spec, tags=tuple(tags), priority=priority)

    return pending.after_upload(upload, submit, ours=packed.paths)


def follow_build(
    client: RegistryClient,
    build: str,
    *,
    on_change: Callable[[BuildView], None] = lambda view: None,
    on_line: Callable[[LogLine], None] | None = None,
    timeout_seconds: float | None = None,
) -> BuildView:
    """Return the build once it is published; `on_change` sees every state and step on the way.

    Raises BuildFailed when it failed or was cancelled, BuildUnfinished when `timeout_seconds` passed, or without such
    at once where no host has run what is to be proven, Unavailable or NotARegistry when the registry has not answered
    for AWAY_SECONDS.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    log = _Log(client, build, on_line)
    answered, pause, seen, view = time.monotonic(), FIRST_POLL_SECONDS, None, None
    while True:
        try:
            view = client.get_build(build)
            log.read()
            answered = time.monotonic()
        except Unavailable:
            if time.monotonic() - answered > AWAY_SECONDS:
                raise
        except NotARegistry:  # a proxy's page while the registry restarts; at first, a wrong address
            if view is None or time.monotonic() - answered > AWAY_SECONDS:
                raise
        if view is not None:
            now = (view.state, view.attempt, view.phase, view.step, view.waiting)
            if now != seen:
                seen, pause = now, FIRST_POLL_SECONDS
                on_change(view)
            if view.state is BuildState.PUBLISHED:
                return view
            if view.state.finished:
                raise failure_of(view)
            if timeout_seconds is None and view.waiting.startswith(NOT_RUN):
                raise _nobody_proves(view)
        if deadline is not None and time.monotonic() > deadline:
            raise _late(build, view, timeout_seconds)
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


class _Log:
    """A build's log, every line handed on once."""

    def __init__(self, client: RegistryClient, build: str, on_line: Callable[[LogLine], None] | None) -> None:
        self._client = client
        self._build = build
        self._on_line = on_line
        self._last: int | None = None

    def read(self) -> None:
        """Hand on all that is new."""
        while self._on_line and (lines := self._client.get_build_log(self._build, after=self._last).lines):
            for line in lines:
                self._on_line(line)
                self._last = line.sequence


def _nobody_proves(view: BuildView) -> BuildUnfinished:
    return BuildUnfinished(
        f"the bundle of build {view.id} is pending, {view.waiting}",
        hint=f"it goes live once a worker of {view.profile} has proven it: start one, then `aot wait {view.id}`",
    )


def _late(build: str, view: BuildView | None, timeout_seconds: float | None) -> BuildUnfinished:
    state = view.state if view else "not known"
    again = f"`aot wait {build}` follows it on, `aot cancel {build}` ends it"
    return BuildUnfinished(
        f"build {build} is still {state} after {timeout_seconds:.0f} s",
        hint=f"{view.waiting}; {again}" if view and view.waiting else again,
    )
