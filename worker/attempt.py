"""One attempt at a build, as the registry sees it: the lease renewed and progress told beside the work."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from aot.client import RegistryClient
from aot.client.retry import ONCE
from aot.errors import (
    AotError,
    BuildFinished,
    Forbidden,
    LeaseLost,
    NotARegistry,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.report import Phase
from aot.schema.wire.builds import SHUTTING_DOWN, Claim
from aot.schema.wire.errors import ErrorBody
from worker.lines import Lines, plain
from worker.logs import LogFiles

T = TypeVar("T")
log = logging.getLogger("worker")

TELL_SECONDS = 0.5
STEP_CHARACTERS = 200
MESSAGE_CHARACTERS, ERROR_BYTES = 4000, 1 << 20
# How long an answer to a renewal is waited for at most; a shorter lease waits less.
QUICK_SECONDS = 10.0
# How long the end of an attempt waits for a registry that restarts, as long as the lease lives.
PATIENCE_SECONDS, PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 600.0, 0.5, 10.0
# A process that was told to end has ten seconds before most supervisors kill it.
PARTING_SECONDS = 4.0
# A proxy whose registry restarts has a page of its own, often with 404: that says nothing of the build.
AWAY = (Unavailable, NotARegistry)
# After these no further request of this attempt can succeed.
LOST = (LeaseLost, BuildFinished, NotFound, Forbidden, Unauthenticated)


class Attempt:
    """Renews the lease of `claim` and tells progress from a thread of its own, until the block is left.

    `asked_at` is when the claim was sent, by `time.monotonic`. The work asks `should_stop`; nothing is interrupted from
    here. Until the lease has run out, a registry that is
    away does no harm.
    """

    def __init__(self, client: RegistryClient, claim: Claim, *, asked_at: float, stopping: threading.Event) -> None:
        self.claim = claim
        self.client = client.with_token(claim.token)
        self._quick = self._hasty(min(QUICK_SECONDS, max(1.0, claim.lease_seconds / 4)))
        self._stopping = stopping
        self._stop_reason: str | None = None
        self._lines = Lines()
        self._logs: LogFiles | None = None
        self._phase: Phase | None = None
        self._step = ""
        self._changed = False
        self._away = False
        self._noting = threading.Lock()
        self._telling = threading.RLock()  # one at a time, so that lines and phases arrive in their order
        self._finished = threading.Event()
        self._extended(asked_at=asked_at)
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.build}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._finished.set()
        self._thread.join(timeout=1.0)  # a request on its way ends with the thread, and can do no harm

    def should_stop(self) -> str | None:
        """Why the work must end: cancelled, the lease lost, or the worker shutting down. None: go on."""
        if self._stop_reason is None and time.monotonic() > self._lease_ends:
            return "the lease ran out while the registry could not be reached"
        return self._stop_reason or (SHUTTING_DOWN if self._stopping.is_set() else None)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take one event of a child or of the pipeline: `phase`, `step` and `line`, each optional.

        A child may run other people's code: whatever it says is made plain text of a bounded size.
        """
        with self._noting:
            if (phase := _phase_of(event)) is not None:
                step = plain(str(event.get("step", "")), STEP_CHARACTERS)
                if (phase, step) != (self._phase, self._step):
                    self._phase, self._step, self._changed = phase, step, True
                    self._lines.add(f"{phase}: {step}" if step else f"{phase}")
            if line := event.get("line"):
                self._lines.add(str(line))

    @contextlib.contextmanager
    def follow(self, work: Path) -> Iterator[None]:
        """Tell what children write to their log files below `work`, during the block."""
        self._logs = LogFiles(work)
        try:
            yield
        finally:
            with self._telling:
                self._read_logs(last=True)
                self._logs = None

    def tell(self) -> None:
        """Send what is new; what could not be sent is sent next time. Raises the client's errors."""
        with self._telling:
            self._read_logs()
            with self._noting:
                taken, phase, step, changed = self._lines.take(), self._phase, self._step, self._changed
                self._changed = False
            if not (taken.told or changed):
                return
            asked_at = time.monotonic()
            try:
                reply = self._quick.report_progress(self.claim.build, phase=phase, step=step, lines=taken.told)
            except AotError:
                with self._noting:
                    self._lines.put_back(taken)
                    self._changed = True
                raise
            self._extended(asked_at=asked_at)
            self._note(reply.stop)

    def settle(self) -> None:
        """Tell the rest before a step that ends the attempt. Raises what `LOST` lists, not that nobody answers."""
        with contextlib.suppress(*AWAY):
            self.tell()

    def patiently(self, call: Callable[[], T], *, seconds: float | None = None) -> T:
        """Return what `call` returns, called again while the registry is away and the lease lives, so long at most.

        Hours of work must not be lost because the registry restarts. `call` must be safe to repeat. `seconds` left out:
        PATIENCE_SECONDS.
        """
        deadline = time.monotonic() + (PATIENCE_SECONDS if seconds is None else seconds)
        pause = PAUSE_SECONDS
        while True:
            try:
                return call()
            except AWAY:
                if self.should_stop() or time.monotonic() > deadline:
                    raise
            again = time.monotonic() + pause
            while time.monotonic() < again and not self.should_stop():
                time.sleep(min(pause, PAUSE_SECONDS))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def fail(self, error: AotError) -> bool:
        """End the build with `error`. False where the registry did not take it: then the lease decides."""
        with contextlib.suppress(AotError):
            self.tell()
        try:
            self.patiently(lambda: self.client.fail(self.claim.build, error=_body_of(error)))
        except AotError as refused:
            log.warning("fail-not-told build=%s error=%s", self.claim.build, refused.message)
            return False
        return True

    def release(self, reason: str, *, damaged: tuple[Digest, ...] = (), host_fault: bool = False) -> bool:
        """Give the build back. False where the registry did not take it: then the lease runs out by itself."""
        client = self.client
        if self._stopping.is_set():
            client = self._hasty(PARTING_SECONDS)
        else:
            with contextlib.suppress(AotError):
                self.tell()
        account: dict[str, Any] = {"reason": plain(reason, 1000), "damaged": damaged, "host_fault": host_fault}
        try:
            self.patiently(lambda: client.release(self.claim.build, **account), seconds=PARTING_SECONDS)
        except AotError as refused:
            log.warning("release-not-told build=%s error=%s", self.claim.build, refused.message)
            return False
        return True

    def _hasty(self, seconds: float) -> RegistryClient:
        known = self.client
        return RegistryClient(
            known.transport,
            known.url,
            self.claim.token,
            timeout_seconds=min(known.timeout_seconds, seconds),
            retry=ONCE,
        )

    def _run(self) -> None:
        while not self._finished.wait(TELL_SECONDS):
            try:
                self.tell()
                if time.monotonic() >= self._renew_at:
                    asked_at = time.monotonic()
                    reply = self._quick.renew(self.claim.build)
                    self._extended(asked_at=asked_at)
                    self._note(reply.stop)
                self._away = False
            except LOST as error:
                self._note(error.message)
                return
            except AotError as error:
                if not self._away:
                    log.warning("registry-away build=%s error=%s", self.claim.build, error.message)
                self._away = True
            except Exception:  # a fault in telling must not cost the lease
                log.exception("fault build=%s", self.claim.build)

    def _read_logs(self, *, last: bool = False) -> None:
        if self._logs is None:
            return
        lines = self._logs.read(last=last)
        with self._noting:
            for line in lines:
                self._lines.add(line)

    def _extended(self, *, asked_at: float) -> None:
        # Counted from before the request: the registry's own count begins later, so that its lease outlives ours.
        self._lease_ends = asked_at + self.claim.lease_seconds
        self._renew_at = asked_at + self.claim.lease_seconds / 3

    def _note(self, reason: str | None) -> None:
        if reason and self._stop_reason is None:
            self._stop_reason = reason


def _phase_of(event: Mapping[str, Any]) -> Phase | None:
    try:
        return Phase(event["phase"])
    except (KeyError, ValueError, TypeError):
        return None


def _body_of(error: AotError) -> ErrorBody:
    body = ErrorBody.of(error)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if len(encode(body)) <= ERROR_BYTES:
            return body
    return ErrorBody(
        code=body.code,
        message=plain(body.message, MESSAGE_CHARACTERS),
        hint=plain(body.hint, MESSAGE_CHARACTERS),
        details={"left_out": "the details cannot be sent"},
    )
