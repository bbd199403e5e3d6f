"""The processes of `aot up`: started in order, watched, and ended in the opposite order."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.errors import Unavailable

STOP_SECONDS = 14.0
# What every part that is still to be ended keeps of it: the worker gives its build back, the registry ends requests.
KEPT_SECONDS = 2.5
LOG_LINES = 8
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Part:
    """One process. Its log begins at `log_begins`: what is before was said by an earlier one."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    log_begins: int

    def last_words(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.log_begins)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-LOG_LINES:])


class Parts:
    """Every part that was started. They end with this process, however it ends."""

    def __init__(self, logs: Path, *, directory: Path) -> None:
        self._logs = logs
        self._directory = directory
        self._parts: list[Part] = []

    def start(self, name: str, module: Sequence[str], environ: Mapping[str, str]) -> None:
        """Run `python -m MODULE` with its output in a log of its own."""
        self._logs.mkdir(exist_ok=True)
        path = self._logs / f"{name}.log"
        libc, parent = ctypes.CDLL(None), os.getpid()

        def die_with_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before it could be asked to tell
                os._exit(1)

        with path.open("ab") as log:
            begins = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=self._directory,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes to this process alone, and the parts are ended in order
                preexec_fn=die_with_parent,
            )
        self._parts.append(Part(name, process, path, begins))

    def check(self) -> None:
        """Raises Unavailable with the end of its log when a part has ended by itself."""
        for part in self._parts:
            code = part.process.poll()
            if code is not None:
                raise _died(part, code)

    def stop(self) -> None:
        """End the last started first, since it may need the others to leave; whoever stays too long is killed."""
        deadline = time.monotonic() + STOP_SECONDS
        for left, part in reversed(list(enumerate(self._parts))):
            if part.process.poll() is None:
                part.process.terminate()
            _wait_or_kill(part.process, until=deadline - left * KEPT_SECONDS)


def _wait_or_kill(process: subprocess.Popen[bytes], *, until: float) -> None:
    try:
        process.wait(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _died(part: Part, code: int) -> Unavailable:
    how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    words = part.last_words()
    return Unavailable(
        f"the {part.name} {how}", hint=f"its log is {part.log}", details={"log": words or "it said nothing"}
    )
