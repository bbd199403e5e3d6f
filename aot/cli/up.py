"""`aot up`: registry, sweeper and one worker on this machine, from one data directory, until Ctrl-C.

Starts the server parts as processes; it does not import them. They come with a checkout, not with the wheel.
"""

import ctypes
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import aot
from aot.cli.output import say
from aot.client.connect import open_client
from aot.errors import AotError, DirectoryInUse, InvalidConfig, Unavailable
from aot.schema.wire.workers import Scope

START_SECONDS = 60.0
STOP_SECONDS = 15.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Place:
    """One data directory and the address that serves it."""

    data_dir: Path
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def token_file(self) -> Path:
        return self.data_dir / "token"

    @property
    def worker_token_file(self) -> Path:
        return self.data_dir / "worker-token"


@dataclass
class Running:
    """The processes that were started, in order."""

    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ended(self) -> tuple[str, int] | None:
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None:
                return name, code
        return None

    def stop(self) -> None:
        """End the last started first; whoever does not leave in time is killed."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class _Stop(Exception):
    """A signal asked the service to end."""


def serve(place: Place, environ: Mapping[str, str], *, worker: bool) -> None:
    """Serve until SIGINT or SIGTERM, then end every process and return.

    Raises DirectoryInUse when the directory is served already, InvalidConfig outside a checkout, Unavailable when a
    part does not start or ends by itself.
    """
    checkout = find_checkout()
    place.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    running = Running()
    with _claimed(place.data_dir):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _raise_stop)
        try:
            _start_all(running, place, checkout, environ, worker=worker)
            while (ended := running.ended()) is None:
                time.sleep(0.2)
            raise _died(place, *ended)
        except _Stop:
            say("stopping")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            running.stop()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)


def find_checkout() -> Path:
    """Return the directory that holds the server parts. Raises InvalidConfig where only the wheel is installed."""
    root = Path(aot.__file__).resolve().parents[1]
    if not (root / "registry" / "__main__.py").exists():
        raise InvalidConfig(
            "the server parts are not installed with the aot package",
            hint="run `aot up` from a checkout of the project, or use its images",
        )
    return root


def _start_all(running: Running, place: Place, checkout: Path, environ: Mapping[str, str], *, worker: bool) -> None:
    shared = {
        **{name: value for name, value in environ.items() if name not in ("AOT_TOKEN", "AOT_TOKEN_FILE", "AOT_URL")},
        "AOT_DATA_DIR": str(place.data_dir),
        "AOT_HOST": place.host,
        "AOT_PORT": str(place.port),
        "AOT_PUBLIC_URL": place.url,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(checkout), environ.get("PYTHONPATH")))),
    }
    _start(running, "registry", ["registry", "serve"], place, checkout, shared)
    keys = _wait_until_ready(running, place)
    _start(running, "sweeper", ["registry", "sweep", "--every", "2"], place, checkout, shared)
    if worker:
        _write_worker_token(place)
        own = {"AOT_URL": place.url, "AOT_TOKEN_FILE": str(place.worker_token_file)}
        # The sources that this user submits to his own service are his own: without bubblewrap they still run.
        own["AOT_TRUST_SOURCES"] = environ.get("AOT_TRUST_SOURCES", "default")
        _start(running, "worker", ["worker"], place, checkout, shared | own)
    say(f"serving {place.data_dir} at {place.url}; logs in {place.data_dir / 'logs'}; Ctrl-C ends it")
    for line in (
        f"export AOT_URL={place.url}",
        f"export AOT_TOKEN_FILE={place.token_file}",
        f"export AOT_TRUSTED_KEYS={','.join(keys)}",
    ):
        print(line, flush=True)


def _start(
    running: Running, name: str, module: list[str], place: Place, checkout: Path, environ: Mapping[str, str]
) -> None:
    logs = place.data_dir / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / f"{name}.log").open("ab") as log:
        running.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=checkout,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C comes here alone, and the parts are ended in order
            preexec_fn=_die_with_parent,
        )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(running: Running, place: Place) -> tuple[str, ...]:
    """Return the registry's public keys once it answers and is ready."""
    deadline = time.monotonic() + START_SECONDS
    problem = "it did not answer"
    while time.monotonic() < deadline:
        if ended := running.ended():
            raise _died(place, *ended)
        if place.token_file.exists():
            try:
                client = open_client(place.url, place.token_file.read_text().strip(), attempts=1)
                ready = client.get_ready()
                if ready.ready:
                    return client.get_keys().keys
                problem = str(ready.checks)
            except AotError as error:
                problem = error.message
        time.sleep(0.1)
    raise Unavailable(f"the registry did not become ready in {START_SECONDS:.0f} s: {problem}")


def _write_worker_token(place: Place) -> None:
    """A worker's token may only claim; a new one for every start, so that a lost one is soon worthless."""
    client = open_client(place.url, place.token_file.read_text().strip())
    label = f"worker-{secrets.token_hex(4)}"
    token = client.create_token(label, scopes=(Scope.CLAIM,)).token
    temporary = place.worker_token_file.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    temporary.replace(place.worker_token_file)


def _died(place: Place, name: str, code: int) -> Unavailable:
    log = place.data_dir / "logs" / f"{name}.log"
    tail = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
    return Unavailable(f"the {name} ended with code {code}", hint=f"its log is {log}", details={"log": "\n".join(tail)})


class _claimed:
    """Holds the data directory for this process."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "lock"
        self._data_dir = data_dir

    def __enter__(self) -> None:
        self._file: IO[str] = self._path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise DirectoryInUse(
                f"{self._data_dir} is served by another process already",
                hint="stop it, or choose another directory with --data",
            ) from error

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _raise_stop(number: int, frame: FrameType | None) -> None:
    raise _Stop
