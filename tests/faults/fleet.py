"""Replicas, sweepers and workers of a campaign, kept running as an orchestrator keeps them."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.errors import AotError
from aot.schema.wire.workers import Scope
from tests.faults.ledger import Ledger
from tests.faults.schedule import FAKE, Pace
from tests.faults.stacks import Stack

ROOT = Path(__file__).parents[2]
SWEEPERS = 2


@dataclass
class Member:
    """One process: started again when it ends, unless it is held down."""

    name: str
    arguments: list[str]
    environ: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    held_down: bool = False
    starts: int = 0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.starts += 1

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


@dataclass
class Fleet:
    """`close` ends every process of it."""

    root: Path
    stack: Stack
    ledger: Ledger
    pace: Pace = FAKE
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steering = self.root / "steering"
        self.steering.mkdir()
        if self.pace.real_compiler:
            (self.steering / "real-compiler").touch()
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def environ(self, member: str, *, direct: bool = False) -> dict[str, str]:
        """What a process of the registry gets."""
        return {
            **self._kept(),
            **self.stack.environ(member, direct=direct),
            "AOT_SIGNING_KEYS": str(self.root / "signing.key"),
            "AOT_ADMIN_TOKEN": self.token,
            "AOT_LEASE_SECONDS": str(self.pace.lease),
            "AOT_RESEND_SECONDS": "2",
            "AOT_SEEN_SECONDS": "2",
            "AOT_MAX_ATTEMPTS": "50",
            "AOT_NAMESPACE_BUILDS": "limited=1",
        }

    @property
    def replicas(self) -> int:
        return len(self.stack.ports)

    def url(self, replica: int) -> str:
        return f"http://127.0.0.1:{self.stack.ports[replica % self.replicas]}"

    def client(self, replica: int, *, seconds: float = 10.0) -> RegistryClient:
        return open_client(self.url(replica), self.token, timeout_seconds=seconds, attempts=2)

    def start(self) -> None:
        self._run_once("migrate")
        for number, port in enumerate(self.stack.ports):
            name = f"replica-{number}"
            self._add_registry(name, "serve", AOT_PORT=str(port))
        for number in range(SWEEPERS):
            self._add_registry(f"sweeper-{number}", "sweep", "--every", "0.5")
        self.wait_until_ready()
        for number in range(self.pace.workers):
            self._add_worker(f"worker-{number}", self.url(number))
        threading.Thread(target=self._keep, name="orchestrator", daemon=True).start()

    def wait_until_ready(self, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        for replica in range(self.replicas):
            while True:
                with contextlib.suppress(AotError):
                    if self.client(replica).get_ready().ready:
                        break
                assert time.monotonic() < deadline, self.members[f"replica-{replica}"].log.read_text()[-3000:]
                time.sleep(0.1)

    def kill(self, name: str) -> None:
        """Kill it, and keep it down until `release`."""
        with self._lock:
            self.members[name].held_down = True
            self.members[name].kill()

    def release(self, name: str) -> None:
        with self._lock:
            self.members[name].held_down = False

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for member in self.members.values():
                member.kill()

    def _keep(self) -> None:
        while not self._closed.wait(0.2):
            with self._lock:
                for member in self.members.values():
                    ended = member.process is None or member.process.poll() is not None
                    if ended and not member.held_down and not self._closed.is_set():
                        member.start()

    def _add_registry(self, name: str, *arguments: str, **own: str) -> None:
        run = ["-m", "tests.faults.serve", str(self.stack.clock(name)), *arguments]
        self._add(name, run, {**self.environ(name), **own})

    def _add_worker(self, name: str, url: str) -> None:
        """A worker holds no credentials of database and bucket."""
        environ = {
            **self._kept(),
            **self.stack.broker_environ(),
            "AOT_URL": url,
            "AOT_TOKEN": self.client(0).create_token(name, scopes=(Scope.CLAIM,)).token,
            "AOT_DATA_DIR": str(self.root / name),
            "AOT_WORKER_NAME": name,
            "AOT_TRUST_SOURCES": "default,limited,other",
        }
        if self.pace.real_compiler:
            _share_headers(self.root / name)
        self._add(name, ["-m", "tests.faults.worker", str(self.steering)], environ)

    def _add(self, name: str, arguments: list[str], environ: dict[str, str]) -> None:
        Path(environ["AOT_DATA_DIR"]).mkdir(exist_ok=True, mode=0o700)
        self.members[name] = Member(name, arguments, environ, self.root / f"{name}.log")
        self.members[name].start()

    def _kept(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}

    def _run_once(self, command: str) -> None:
        environ = self.environ("once")
        subprocess.run([sys.executable, "-m", "registry", command], cwd=ROOT, env=environ, check=True, timeout=60)


def _share_headers(data_dir: Path) -> None:
    """The headers of torch and the compiler, which outlive a run of the tests: a worker's first build is fast."""
    from tests.integration.compiled import shared_headers

    data_dir.mkdir(mode=0o700)
    shared_headers().mkdir(parents=True, exist_ok=True)
    (data_dir / "toolchain").symlink_to(shared_headers())
