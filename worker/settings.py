"""What a worker is told from outside: the only file of `worker` that reads the environment.

| variable          | meaning                                                        | default                    |
|-------------------|----------------------------------------------------------------|----------------------------|
| AOT_URL           | address of the registry                                        | none: required             |
| AOT_TOKEN         | token with the scope claim; or AOT_TOKEN_FILE                  | none: required             |
| AOT_BROKER_URL    | `redis://…`, `amqp://…`                                        | files in the data directory|
| AOT_DATA_DIR      | queue, scratch directories, headers that builds share          | ~/.local/share/aot         |
| AOT_WORKER_NAME   | name in the registry, unique                                   | host and process id, kept  |
| AOT_PROFILE       | the one profile to serve                                       | all that this host is      |
| AOT_TRUST_SOURCES | namespaces whose sources may run without a sandbox             | none                       |
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aot.config import Config
from aot.errors import AotError, InvalidConfig
from aot.schema.names import Name, Namespace


@dataclass(frozen=True)
class Settings:
    """One worker process. `trust_sources`: the namespaces whose sources may run here without a sandbox.

    `is_named`: somebody chose the name. Else it is one that a worker which has ended here may have had.
    """

    url: str
    token: str = field(repr=False)
    broker_url: str = field(repr=False)  # may hold a password
    data_dir: Path
    name: Name
    profile: Name | None
    trust_sources: frozenset[Namespace]
    is_named: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Raises InvalidConfig naming the variable that is missing or wrong."""
        values = os.environ if environ is None else environ
        config, given = Config.from_environ(values), values.get("AOT_WORKER_NAME", "").strip()
        return cls(
            url=_needed("AOT_URL", config.url),
            token=_needed("AOT_TOKEN", config.token),
            broker_url=values.get("AOT_BROKER_URL", "").strip(),
            data_dir=config.data_dir,
            name=_name(given),
            profile=config.profile,
            trust_sources=config.trust_sources,
            is_named=bool(given),
        )


def _needed(variable: str, value: str | None) -> str:
    if value is None:
        raise InvalidConfig(
            f"{variable} is not set",
            hint="`aot up` sets it for the worker that it starts",
            details={"variable": variable},
        )
    return value


def _name(given: str) -> Name:
    try:
        return Name.parse(given or _default_name())
    except AotError as error:
        raise InvalidConfig(
            f"AOT_WORKER_NAME: {error.message}", hint=error.hint, details={"variable": "AOT_WORKER_NAME"}
        ) from error


def _default_name() -> str:
    host = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname().lower())
    return f"{host[:90].strip('-') or 'worker'}-{os.getpid()}"
