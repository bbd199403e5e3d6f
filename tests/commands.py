"""The `aot` command as a process, against a registry that a test holds in its hands.

with a_shell(tmp_path) as shell:
    shell.service.published(a_spec())
    assert shell.aot("ls").code == 0
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aot.schema.wire.builds import Claim
from tests.service import Service, a_service
from tests.serving import listening, serving
from tests.standing import an_app

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "aot.cli")
SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """How a command ended. Whatever it is, a traceback is never part of it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Shell:
    """A user's shell: his environment, and the registry that it points to."""

    service: Service
    url: str
    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def with_environ(self, **changes: str | None) -> "Shell":
        """The same with other variables; None takes one away."""
        changed = {name: value for name, value in {**self.environ, **changes}.items() if value is not None}
        return Shell(self.service, self.url, self.home, changed)

    def start(self, *arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd or self.home,
            env=dict(self.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def aot(self, *arguments: str, cwd: Path | None = None) -> Ran:
        return end(self.start(*arguments, cwd=cwd))

    def claim(self, process: "subprocess.Popen[str]", *profiles: str) -> Claim:
        """Claim what the running command has submitted, as its worker would."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if (claim := self.service.ask(*profiles).claim) is not None:
                return claim
            time.sleep(0.05)
        raise AssertionError(f"nothing was submitted: {end(process)}")


def end(process: "subprocess.Popen[str]", *, seconds: float = SECONDS) -> Ran:
    """Wait for a command to end."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert "Traceback" not in err, err
    return Ran(process.returncode, out, err)


def interrupt(process: "subprocess.Popen[str]") -> Ran:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return end(process)


def processes_naming(text: str) -> list[str]:
    """The command lines of all processes that have `text` in them or in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, environ = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in words + environ:
            found.append(words.replace(b"\0", b" ").decode())
    return found


def clean_environ(home: Path, **variables: str) -> dict[str, str]:
    """An environment without any of the product's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AOT_")}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "AOT_CACHE_DIR": str(home / "cache"), **variables}


@contextmanager
def a_shell(place: Path) -> Iterator[Shell]:
    """A registry that is served on loopback, and a shell whose variables lead to it with the administrator's token."""
    home = place / "home"
    home.mkdir(parents=True)
    with listening() as (listener, url), a_service(place / "registry", AOT_PUBLIC_URL=url) as service:
        keys = ",".join(service.call("get_keys").keys)
        environ = clean_environ(home, AOT_URL=url, AOT_TOKEN=service.admin, AOT_TRUSTED_KEYS=keys, AOT_TIMEOUT="3")
        with an_app(service.deps) as app, serving(app, listener):
            yield Shell(service, url, home, environ)
