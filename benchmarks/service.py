"""An `aot up` of one's own, on a free port and a private data directory, for as long as a block runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aot.schema.state import BuildState
from benchmarks.starts import ROOT


@dataclass(frozen=True)
class Service:
    """A running service; `environ` is what a client of it needs."""

    environ: Mapping[str, str]
    data: Path

    def aot(self, *arguments: str, quiet: bool = False) -> str:
        """Run one `aot` command and return its stdout. Raises CalledProcessError."""
        return subprocess.run(
            [sys.executable, "-m", "aot.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            check=True,
        ).stdout

    def cancel_live(self) -> list[str]:
        """Cancel what a call that was cut off has left to build, and return it: the worker would go on with that first.

        Whoever wants it submits it again, and gets a build of his own.
        """
        builds = json.loads(self.aot("ls", "--builds", "--json"))["builds"]
        live = [str(one["id"]) for one in builds if BuildState(one["state"]).live]
        for build in live:
            self.aot("cancel", build, quiet=True)
        return live


@contextmanager
def running_service(data: Path, *, namespaces: Sequence[str] = ()) -> Iterator[Service]:
    """Start `aot up`, wait for the lines that it prints, and end it afterwards.

    It builds without a sandbox, where there is none, in the default namespace and in `namespaces`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "aot.cli", "up", "--data", str(data), "--port", str(_free_port())],
        env={**os.environ, "AOT_TRUST_SOURCES": ",".join(("default", *namespaces))},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Service({**_read_exports(process), "AOT_CACHE_DIR": str(data / "node")}, data)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _read_exports(process: "subprocess.Popen[str]") -> dict[str, str]:
    found: dict[str, str] = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, _, value = line.strip().removeprefix("export ").partition("=")
        found[name] = value
        if name == "AOT_TRUSTED_KEYS":
            return found
    raise RuntimeError("aot up ended before it was ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
