"""Server processes of the benchmarks, each on a free port for as long as a block runs."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping

from benchmarks.starts import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server(command: list[str], port: int, *, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start the process, wait until it listens, and end it afterwards. Raises RuntimeError when it does not."""
    process = subprocess.Popen(command, cwd=ROOT, env=environ)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[:4]} does not serve")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)
