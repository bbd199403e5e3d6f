"""What a worker is told from outside: the only file of `worker` that reads the environment."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.errors import InvalidConfig
from aot.schema.names import Name


@dataclass(frozen=True)
class Settings:
    """One worker process. `trust_sources`: the namespaces whose sources may run here without a sandbox."""

    url: str
    token: str
    broker_url: str
    data_dir: Path
    name: Name
    profile: str | None
    trust_sources: frozenset[str]
    seen_seconds: float = 10.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Raises InvalidConfig naming the variable that is missing or wrong."""
        values = os.environ if environ is None else environ
        data_dir = Path(values.get("AOT_DATA_DIR") or Path.home() / ".local/share/aot").absolute()
        return cls(
            url=_needed(values, "AOT_URL"),
            token=_read_token(values),
            broker_url=values.get("AOT_BROKER_URL") or "filesystem://",
            data_dir=data_dir,
            name=Name.parse(values.get("AOT_WORKER_NAME") or _default_name()),
            profile=values.get("AOT_PROFILE") or None,
            trust_sources=frozenset(filter(None, values.get("AOT_TRUST_SOURCES", "").split(","))),
        )


def _needed(values: Mapping[str, str], name: str) -> str:
    if not values.get(name):
        raise InvalidConfig(f"{name} is not set", hint="`aot up` sets it for the worker that it starts")
    return values[name]


def _read_token(values: Mapping[str, str]) -> str:
    if file := values.get("AOT_TOKEN_FILE"):
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise InvalidConfig(f"AOT_TOKEN_FILE {file} cannot be read: {error}") from error
    return _needed(values, "AOT_TOKEN")


def _default_name() -> str:
    host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname().lower()).strip("-")
    return f"{host or 'worker'}-{os.getpid()}"[:100]
