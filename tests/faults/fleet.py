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
from tests.faults.backends import ACCESS, BUCKET, SECRET, free_port
from tests.faults.ledger import Ledger

ROOT = Path(__file__).parents[2]
REPLICAS, SWEEPERS, WORKERS = 2, 2, 3
LEASE_SECONDS = 3.0


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
    database_url: str
    broker_url: str
    store_url: str
    ledger: Ledger
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steering = self.root / "steering"
        self.steering.mkdir()
        self.ports = [free_port() for _ in range(REPLICAS)]
        self._closed = threading.Event()
        self._lock = threading.Lock()

    @property
    def environ(self) -> dict[str, str]:
        """What every process of the registry gets."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
        return {
            **kept,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AOT_DATABASE_URL": self.database_url,
            "AOT_BROKER_URL": self.broker_url,
            "AOT_BLOB_URL": self.blob_url(self.store_url),
            "AOT_SIGNING_KEYS": str(self.root / "signing.key"),
            "AOT_ADMIN_TOKEN": self.token,
            "AOT_LEASE_SECONDS": str(LEASE_SECONDS),
            "AOT_RESEND_SECONDS": "2",
            "AOT_SEEN_SECONDS": "2",
            "AOT_MAX_ATTEMPTS": "50",
            "AOT_NAMESPACE_BUILDS": "limited=1",
        }

    @staticmethod
    def blob_url(endpoint: str) -> str:
        # About half of what workers upload is larger, and goes in parts.
        return f"s3://{BUCKET}/aot?endpoint={endpoint}&region=us-east-1&largest_put=30000"

    def url(self, replica: int) -> str:
        return f"http://127.0.0.1:{self.ports[replica % REPLICAS]}"

    def client(self, replica: int, *, seconds: float = 10.0) -> RegistryClient:
        return open_client(self.url(replica), self.token, timeout_seconds=seconds, attempts=2)

    def start(self) -> None:
        self._run_once("migrate")
        for number, port in enumerate(self.ports):
            own = {"AOT_PORT": str(port), "AOT_PUBLIC_URL": f"http://127.0.0.1:{port}"}
            self._add(f"replica-{number}", ["-m", "tests.faults.serve", str(self.clock(number)), "serve"], **own)
        for number in range(SWEEPERS):
            self._add(f"sweeper-{number}", ["-m", "registry", "sweep", "--every", "0.5"])
        self.wait_until_ready()
        for number in range(WORKERS):
            own = {
                "AOT_URL": self.url(number),
                "AOT_TOKEN": self.client(0).create_token(f"worker-{number}", scopes=(Scope.CLAIM,)).token,
                "AOT_WORKER_NAME": f"worker-{number}",
                "AOT_TRUST_SOURCES": "default,limited,other",
            }
            self._add(f"worker-{number}", ["-m", "tests.faults.worker", str(self.steering)], **own)
        threading.Thread(target=self._keep, name="orchestrator", daemon=True).start()

    def wait_until_ready(self, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        for replica in range(REPLICAS):
            while True:
                with contextlib.suppress(AotError):
                    if self.client(replica).get_ready().ready:
                        break
                assert time.monotonic() < deadline, self.members[f"replica-{replica}"].log.read_text()[-3000:]
                time.sleep(0.1)

    def clock(self, replica: int) -> Path:
        """The file that turns the clock of a replica."""
        return self.root / f"clock-{replica}"

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

    def _add(self, name: str, arguments: list[str], **own: str) -> None:
        data_dir = self.root / name
        data_dir.mkdir()
        environ = {**self.environ, "AOT_DATA_DIR": str(data_dir), **own}
        if name.startswith("worker"):  # a worker holds no credentials of database and bucket
            secret = ("AWS_", "AOT_DATABASE", "AOT_BLOB", "AOT_SIGNING", "AOT_ADMIN")
            environ = {name: value for name, value in environ.items() if not name.startswith(secret)}
        self.members[name] = Member(name, arguments, environ, self.root / f"{name}.log")
        self.members[name].start()

    def _run_once(self, command: str) -> None:
        environ = {**self.environ, "AOT_DATA_DIR": str(self.root / "once")}
        subprocess.run([sys.executable, "-m", "registry", command], cwd=ROOT, env=environ, check=True, timeout=60)
