"""The caller's end of the conversation with one supervisor, held by the thread that called `run_child`."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from aot.errors import InvalidInput
from aot.sandbox.events import EventReader, ShouldStop
from aot.sandbox.exit import ChildExit, ExitKind
from aot.sandbox.limits import SandboxKind

ASK_SECONDS = 0.2
CHUNK_BYTES = 64 * 1024
# How much later than the limit on wall time a supervisor may answer: it kills for ten seconds, then drains.
ANSWER_SECONDS = 30.0

# The supervisor needs some modules of this package and the standard library. Bare packages spare it
# `aot/__init__.py` and site-packages, so that it runs within 30 ms.
_START = """
import sys, types
for name, place in (("aot", sys.argv[2]), ("aot.sandbox", sys.argv[3])):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [place]
from aot.sandbox.supervise import main
main()
"""


class Talk:
    """Starts the supervisor of `spec`; then `hold`, `end` whatever happens, and `read_exit`.

    `events` and `writer` are the two ends of the child's event pipe, if it has one; `writer` is closed here.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        *,
        events: BinaryIO | None,
        writer: BinaryIO | None,
        reader: EventReader,
        should_stop: ShouldStop,
    ) -> None:
        self._limits = spec["limits"]
        self._events = events and events.fileno()
        self._reader = reader
        self._should_stop = should_stop
        self._stop_reason: str | None = None
        self._told = False
        self._answer = b""
        self._complaint = ""
        self._started = time.monotonic()
        self._supervisor = _start_supervisor((writer.fileno(),) if writer else ())
        if writer:
            writer.close()  # only the child's tree shall hold it, so that its end closes the pipe
        self._tell(json.dumps(spec))

    def hold(self) -> None:
        """Return when the supervisor has answered and every event is delivered."""
        assert self._supervisor.stdout is not None
        answer = self._supervisor.stdout.fileno()
        deadline = self._started + self._limits["wall_seconds"] + ANSWER_SECONDS
        ask_at = self._started
        with selectors.DefaultSelector() as selector:
            for fd in (answer, self._events):
                if fd is not None:
                    selector.register(fd, selectors.EVENT_READ)
            while answer in selector.get_map():
                for key, _ in selector.select(ASK_SECONDS):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
                now = time.monotonic()
                if now >= ask_at:
                    self._ask()
                    ask_at = now + ASK_SECONDS
                if now > deadline:
                    self._supervisor.kill()
        self._drain_events()

    def end(self) -> None:
        """Stop the child if it still runs, and wait until its supervisor is gone."""
        supervisor = self._supervisor
        for pipe in (supervisor.stdin, supervisor.stdout):
            with contextlib.suppress(OSError):
                pipe and pipe.close()
        try:
            supervisor.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
        if supervisor.stderr:
            self._complaint = supervisor.stderr.read().decode(errors="replace").strip()
            supervisor.stderr.close()

    def read_exit(self, sandbox: SandboxKind) -> ChildExit:
        """Raises InvalidInput when the child was never started."""
        known = {"stop_reason": self._stop_reason, "sandbox": sandbox, "garbled_lines": self._reader.garbled_lines}
        if not self._answer:
            seconds = time.monotonic() - self._started
            return ChildExit.lost(wall_seconds=seconds, complaint=self._complaint, **known)
        report = json.loads(self._answer)
        if report["failure"]:
            raise InvalidInput(
                f"the child did not start: {report['failure']}",
                hint="check its program, its working directory and the paths it may see",
            )
        return ChildExit.from_report(report, **known)

    def _read(self, fd: int) -> bool:
        chunk = os.read(fd, CHUNK_BYTES)
        if fd == self._events:
            self._take_events(chunk)
        else:
            self._answer += chunk
        return bool(chunk)

    def _take_events(self, chunk: bytes) -> None:
        self._reader.feed(chunk)
        if self._reader.read_bytes > self._limits["output_bytes"]:
            self._tell_once(ExitKind.TOO_MUCH_OUTPUT)

    def _drain_events(self) -> None:
        # The tree is gone, so what is left fits into the pipe.
        if self._events is None:
            return
        os.set_blocking(self._events, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._events, CHUNK_BYTES):
                self._reader.feed(chunk)
        self._reader.finish()

    def _ask(self) -> None:
        if self._told:
            return
        self._stop_reason = self._should_stop()
        if self._stop_reason is not None:
            self._tell_once(ExitKind.STOPPED)

    def _tell_once(self, kind: ExitKind) -> None:
        if not self._told:
            self._told = True
            self._tell(kind)

    def _tell(self, line: str) -> None:
        assert self._supervisor.stdin is not None
        # A supervisor that died reads nothing; the end of its answer tells it.
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.write(line.encode() + b"\n")
            self._supervisor.stdin.flush()


def _start_supervisor(passed: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    place = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), str(place.parent), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        start_new_session=True,  # Ctrl-C is the caller's to handle
    )
