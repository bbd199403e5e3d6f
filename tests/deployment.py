"""Registry, sweeper and workers as the processes that they are in production, for tests that kill them.

with Deployment(tmp_path, lease_seconds=2) as place:
    worker = place.start_worker("w1")
    build = place.submit("mini")
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.errors import AotError
from aot.pipeline import pack_factory, submit_spec
from aot.schema.names import Name
from aot.schema.spec import Spec
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView
from aot.schema.wire.workers import Scope
from tests.builders import a_spec

ROOT = Path(__file__).parents[1]


def wait_for(condition: Callable[[], Any], *, seconds: float = 30.0, what: str = "it") -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(AotError, FileNotFoundError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds:.0f} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Deployment:
    """One data directory, served until the block ends. `hold` and `child` steer the workers: see tests.fake_worker."""

    def __init__(self, root: Path, *, lease_seconds: float = 2.0, broker_url: str = "") -> None:
        self.data_dir = root / "registry"
        self.steering = root / "steering"
        self.steering.mkdir(parents=True)
        self.root = root
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client: RegistryClient
        self.registry: subprocess.Popen[bytes]
        self._environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ},
            "AOT_DATA_DIR": str(self.data_dir),
            "AOT_PORT": str(self.port),
            "AOT_BROKER_URL": broker_url,
            "AOT_LEASE_SECONDS": str(lease_seconds),
            "AOT_RESEND_SECONDS": "1",
            "AOT_SEEN_SECONDS": "2",
            "AOT_TRUST_SOURCES": "default",
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start_registry()
            self.start_sweeper()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def start_registry(self) -> None:
        self.registry = self._start("registry", ["-m", "registry", "serve"])
        token = self.data_dir / "token"
        wait_for(token.exists, what="the token")
        self.client = open_client(self.url, token.read_text().strip(), timeout_seconds=10)
        wait_for(lambda: self.client.get_ready().ready, what="the registry")

    def start_sweeper(self) -> subprocess.Popen[bytes]:
        return self._start("sweeper", ["-m", "registry", "sweep", "--every", "0.3"])

    def start_worker(self, name: str, *, ready: bool = True, **environ: str) -> subprocess.Popen[bytes]:
        """Start a worker that serves one profile of this machine; by default, wait until it is registered."""
        token = environ.pop("AOT_TOKEN", None) or self.client.create_token(name, scopes=(Scope.CLAIM,)).token
        own = {"AOT_URL": self.url, "AOT_TOKEN": token, "AOT_WORKER_NAME": name, **environ}
        process = self._start(name, ["-m", "tests.fake_worker", str(self.steering)], **own)
        if ready:
            wait_for(lambda: name in self.log_of(name) and "serving" in self.log_of(name), what=f"worker {name}")
        return process

    def submit(self, name: str, *, client: RegistryClient | None = None) -> BuildView:
        """Submit a spec of this name for the profile that the workers serve."""
        return submit_spec(client or self.client, *self.spec(name)).build

    def spec(self, name: str) -> tuple[Spec, Any]:
        tree = self.root / "sources" / name
        tree.mkdir(parents=True, exist_ok=True)
        (tree / "model.py").write_text(f"def make(): return {name!r}\n")
        packed = pack_factory(tree, "model:make", into=self.root / "packed" / name)
        profile = self.client.list_profiles().profiles[0].profile.name
        return a_spec(name, profile=profile, source=packed.source), packed

    def wait_for_state(self, build: str, state: BuildState, *, seconds: float = 30.0) -> BuildView:
        def reached() -> BuildView | None:
            view = self.client.get_build(build)
            return view if view.state is state else None

        return wait_for(reached, seconds=seconds, what=f"build {build} {state}")

    def bundles(self, name: str) -> int:
        """How many bundles of this name there are."""
        return len(self.client.search(name=Name(name)).bundles)

    @contextlib.contextmanager
    def hold(self, phase: str) -> Iterator[None]:
        """Make every build stay in `phase` during the block."""
        gate = self.steering / f"hold-{phase}"
        gate.touch()
        try:
            yield
        finally:
            gate.unlink()

    def reached(self, build: str) -> list[tuple[int, str]]:
        """The phases that began, each with the process that it began in."""
        rows = [line.split() for line in (self.steering / "reached").read_text().splitlines()]
        return [(int(pid), phase) for pid, phase, of in rows if of == build]

    def wait_for_phase(self, build: str, phase: str, *, pid: int) -> None:
        wait_for(lambda: (pid, phase) in self.reached(build), what=f"phase {phase}")

    @contextlib.contextmanager
    def real_child(self) -> Iterator[Callable[[], list[int]]]:
        """Make compiling a real child with a child of its own, during the block; the value waits for their pids."""
        steer, told = self.steering / "child", self.steering / "children"
        told.unlink(missing_ok=True)
        steer.touch()
        try:
            yield lambda: wait_for(lambda: [int(pid) for pid in told.read_text().split()], what="the child")
        finally:
            steer.unlink()

    def name_of(self, process: subprocess.Popen[bytes]) -> str:
        return self._names[process.pid]

    def log_of(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def _start(self, name: str, arguments: list[str], **environ: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=self._environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        self._names[process.pid] = name
        return process


def kill_hard(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def require_given_back(place: Deployment, worker: subprocess.Popen[bytes]) -> None:
    """A worker that is told to end in the middle of a build gives that back. It has ended afterwards."""
    with place.hold("compiling"):
        given = place.submit("given-back")
        place.wait_for_phase(given.id, "compiling", pid=worker.pid)
        end_softly(worker)
    assert place.client.get_build(given.id).state is BuildState.QUEUED


def end_softly(process: subprocess.Popen[bytes], number: int = signal.SIGTERM, *, seconds: float = 10.0) -> float:
    """Send the signal, and return the seconds until the process has ended. Raises TimeoutExpired."""
    begun = time.monotonic()
    process.send_signal(number)
    process.wait(seconds)
    return time.monotonic() - begun
