"""`aot up`: registry, sweeper and one worker on this machine, from one data directory, until Ctrl-C.

Starts the server parts as processes; it does not import them. They come with a checkout, not with the wheel.
"""

import contextlib
import errno
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Self

import aot
from aot.cli.output import emit, say
from aot.cli.part_environ import is_loopback, parts_path, worker_environ
from aot.cli.parts import Parts
from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.errors import AotError, InvalidConfig, InvalidInput, Unauthenticated, Unavailable
from aot.locks import claimed
from aot.schema.names import Name
from aot.schema.wire.workers import Scope

START_SECONDS = 120.0
ASK_SECONDS = 5.0
PAUSE_SECONDS = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_VARIABLES = ("AOT_TOKEN", "AOT_TOKEN_FILE", "AOT_URL")
# Where an address means "all of them", this is how the same machine reaches it.
NEAR = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Place:
    """One data directory and the address that serves it."""

    data_dir: Path
    host: str
    port: int

    @classmethod
    def choose(cls, data_dir: Path, host: str, port: int) -> Self:
        """Port 0 becomes one that is free now. Raises InvalidInput for a host that cannot be bound."""
        return cls(data_dir, host, port or _bind(host, 0))

    @property
    def url(self) -> str:
        host = NEAR.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def logs(self) -> Path:
        return self.data_dir / "logs"

    @property
    def token_file(self) -> Path:
        return self.data_dir / "token"

    @property
    def worker_token_file(self) -> Path:
        return self.data_dir / "worker-token"

    def client(self) -> RegistryClient:
        """The administrator's, once the registry has written his token."""
        return open_client(self.url, self.token_file.read_text().strip(), timeout_seconds=ASK_SECONDS, attempts=1)


class _Stop(Exception):
    """A signal asked the service to end."""


def serve(place: Place, environ: Mapping[str, str], *, worker: bool, as_json: bool = False) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then end every process and return.

    Raises DirectoryInUse when the directory is served already, InvalidInput where it is a file, InvalidConfig outside a
    checkout, Unavailable when the port is taken, or a part does not start or ends by itself.
    """
    checkout = find_checkout()
    if place.data_dir.exists() and not place.data_dir.is_dir():
        raise InvalidInput(f"wanted a directory, found the file {place.data_dir}", hint="name a directory with --data")
    place.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    parts = Parts(place.logs, directory=checkout)
    alone = claimed(place.data_dir / "lock", hint="stop it, or choose another directory with --data")
    with alone, _interruptible() as disarm:
        try:
            _bind(place.host, place.port)
            _start(parts, place, _shared(place, checkout, environ), worker=worker)
            _tell(place, as_json=as_json)
            while True:
                parts.check()
                time.sleep(PAUSE_SECONDS)
        except _Stop:
            say("stopping")
        finally:
            disarm()
            parts.stop()


def find_checkout() -> Path:
    """Return the directory that holds the server parts. Raises InvalidConfig where only the wheel is installed."""
    root = Path(aot.__file__).resolve().parents[1]
    if not (root / "registry" / "__main__.py").exists():
        raise InvalidConfig(
            "the server parts are not installed with the aot package",
            hint="run `aot up` from a checkout of the project, or use its images",
        )
    return root


def _shared(place: Place, checkout: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the registry and the sweeper: the caller's, without his own way to another registry."""
    return {
        "AOT_PUBLIC_URL": place.url,
        **{name: value for name, value in environ.items() if name not in OWN_VARIABLES},
        "AOT_DATA_DIR": str(place.data_dir),
        "AOT_HOST": place.host,
        "AOT_PORT": str(place.port),
        "PYTHONPATH": parts_path(checkout, environ),
    }


def _start(parts: Parts, place: Place, shared: Mapping[str, str], *, worker: bool) -> None:
    """Start every part, and return once builds can be submitted."""
    parts.start("registry", ["registry", "serve"], shared)
    _wait_until_ready(parts, place)
    parts.start("sweeper", ["registry", "sweep", "--every", "2"], shared)
    if not worker:
        return
    _ensure_worker_token(place)
    before = _seen(place)
    own = worker_environ(shared, url=place.url, token_file=place.worker_token_file, at_home=is_loopback(place.host))
    parts.start("worker", ["worker"], own)
    _wait_for_worker(parts, place, before)


def _tell(place: Place, *, as_json: bool) -> None:
    if not is_loopback(place.host):
        say(f"bound to {place.host}, which other machines may reach: tokens travel unencrypted, put TLS in front")
    say(f"serving {place.data_dir} at {place.url}; logs in {place.logs}; Ctrl-C ends it")
    exports = {
        "AOT_URL": place.url,
        "AOT_TOKEN_FILE": str(place.token_file),
        "AOT_TRUSTED_KEYS": ",".join(place.client().get_keys().keys),
    }
    emit(exports, [f"export {name}={value}" for name, value in exports.items()], as_json=as_json)


def _wait_until_ready(parts: Parts, place: Place) -> None:
    """Return once the registry answers and is ready."""
    deadline = time.monotonic() + START_SECONDS
    problem = "it did not answer"
    while time.monotonic() < deadline:
        parts.check()
        if place.token_file.exists():
            try:
                ready = place.client().get_ready()
                if ready.ready:
                    return
                problem = str(ready.checks)
            except AotError as error:
                problem = error.message
        time.sleep(PAUSE_SECONDS)
    if not place.token_file.exists():  # a database elsewhere, whose first token another registry has made
        problem = f"there is no {place.token_file}; `python -m registry token create` makes one"
    raise Unavailable(
        f"the registry did not become ready in {START_SECONDS:.0f} s: {problem}",
        hint=f"its log is {place.logs / 'registry.log'}",
    )


def _wait_for_worker(parts: Parts, place: Place, before: Mapping[Name, datetime]) -> None:
    """Return once the worker has registered: until then a build has no profile to be for."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        parts.check()
        if any(before.get(name) != at for name, at in _seen(place).items()):
            return
        time.sleep(PAUSE_SECONDS)
    raise Unavailable(
        f"the worker did not register in {START_SECONDS:.0f} s", hint=f"its log is {place.logs / 'worker.log'}"
    )


def _seen(place: Place) -> dict[Name, datetime]:
    return {worker.name: worker.seen_at for worker in place.client().list_workers().workers}


def _ensure_worker_token(place: Place) -> None:
    """Make true that the worker has a token of its own, which may only claim."""
    path = place.worker_token_file
    if path.exists():
        try:
            open_client(place.url, path.read_text().strip(), timeout_seconds=ASK_SECONDS, attempts=1).get_keys()
            return
        except (Unauthenticated, InvalidConfig):
            pass  # of an earlier database
    token = place.client().create_token(f"worker-{secrets.token_hex(4)}", scopes=(Scope.CLAIM,)).token
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    temporary.replace(path)


def _bind(host: str, port: int) -> int:
    """Return the port that could be bound, without keeping it. Raises Unavailable where it is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} of {host} is in use", hint="stop what serves there, or choose another with --port"
            ) from error
        raise InvalidInput(
            f"{host}:{port} cannot be bound: {error.strerror}", hint="choose an address of this machine with --host"
        ) from error


@contextlib.contextmanager
def _interruptible() -> Iterator["_Disarm"]:
    """Let the first signal raise _Stop, and ignore the others: by then the parts are being ended."""
    disarm = _Disarm()
    before = {number: signal.signal(number, disarm.on_signal) for number in SIGNALS}
    try:
        yield disarm
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Disarm:
    """Call it, and no signal raises any more."""

    def __init__(self) -> None:
        self._armed = True

    def __call__(self) -> None:
        self._armed = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise _Stop
