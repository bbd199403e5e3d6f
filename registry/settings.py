"""Settings: the only file of the registry that reads environment variables.

| Variable              | Default                      | Meaning                                                       |
|-----------------------|------------------------------|---------------------------------------------------------------|
| AOT_DATA_DIR          | ~/.local/share/aot           | database, blobs, keys and tokens of the embedded service      |
| AOT_DATABASE_URL      | SQLite in the data directory | `postgresql+psycopg://…`, or `sqlite:////…`                   |
| AOT_BROKER_URL        | files in the data directory  | `redis://…`, `amqp://…`                                       |
| AOT_BLOB_URL          | `directory`                  | `s3://bucket/prefix?endpoint=…&region=…`                      |
| AOT_HOST, AOT_PORT    | 127.0.0.1, 8750              | where `serve` listens                                         |
| AOT_PUBLIC_URL        | http://HOST:PORT             | how clients reach the service; in the links of `directory`    |
| AOT_SIGNING_KEYS      | signing.key in the data dir  | files of Ed25519 keys, `:` between; each signs every bundle   |
| AOT_ADMIN_TOKEN       | none                         | an administrator's token, from a secret; the one before ends  |
| AOT_LEASE_SECONDS     | 120                          | a worker that does not renew for so long has lost its build   |
| AOT_MAX_ATTEMPTS      | 3                            | so many lost leases end a build                               |
| AOT_ATTEMPT_SECONDS   | 86400                        | the token of a claim works no longer than this                |
| AOT_RESEND_SECONDS    | 60                           | a queued build is announced again after this                  |
| AOT_LINK_SECONDS      | 3600                         | a link to a blob works for so long; of a claim, for its bytes |
| AOT_SEEN_SECONDS      | 30                           | workers register again so often; dead after three times that  |
| AOT_MAX_BODY_BYTES    | 67108864                     | the largest request, manifests included                       |
| AOT_NAMESPACE_BUILDS  | none                         | builds a namespace may run at once: `*=8,research=2`          |
| AOT_KEEP_SECONDS      | 7776000 (90 days)            | an untagged bundle goes so long after its last use            |
| AOT_KEEP_OUT_SECONDS  | 2592000 (30 days)            | the same for withdrawn and rejected bundles                   |
| AOT_KEEP_PENDING_SECONDS | 2592000 (30 days)         | a pushed bundle that nobody has proven is rejected after this |
| AOT_GRACE_SECONDS     | 86400                        | bytes that nobody needs stay so long, and an hour over links  |
| AOT_RETAIN_SECONDS    | 3600                         | the sweeper looks for what has expired so often               |
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from aot.errors import InvalidConfig, InvalidName
from aot.schema.names import Namespace
from registry.services.turns import RunningLimits

DEFAULT_PORT = 8750
# A transfer that began before its link expired may go on, and clocks differ.
LINK_MARGIN = timedelta(hours=1)
TOKEN_FILE, PROBE_FILE = "token", "probe-token"
LEAST_OF_TOKEN = 24  # characters: what cannot be guessed


@dataclass(frozen=True)
class Settings:
    data_dir: Path
    database_url: str
    broker_url: str
    blob_url: str
    host: str
    port: int
    public_url: str
    signing_keys: tuple[Path, ...]
    admin_token: str = field(repr=False)  # empty: none is given
    lease: timedelta
    max_attempts: int
    attempt_lives: timedelta
    resend_after: timedelta
    link_lives: timedelta
    seen_every: timedelta
    max_body_bytes: int
    running_limits: RunningLimits
    keep: timedelta
    keep_out: timedelta
    keep_pending: timedelta
    grace: timedelta
    retain_every: timedelta

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Raises InvalidConfig naming the variable. None: the environment of this process."""
        read = _Reader(os.environ if environ is None else environ)
        data_dir = Path(read.text("AOT_DATA_DIR", "~/.local/share/aot")).expanduser().absolute()
        host, port = (
            read.text("AOT_HOST", "127.0.0.1"),
            read.number("AOT_PORT", DEFAULT_PORT, int, most=65535),
        )
        keys = read.text("AOT_SIGNING_KEYS", str(data_dir / "signing.key"))
        return cls(
            data_dir=data_dir,
            database_url=read.text("AOT_DATABASE_URL", f"sqlite:///{data_dir / 'registry.sqlite3'}"),
            broker_url=read.text("AOT_BROKER_URL", ""),
            blob_url=read.text("AOT_BLOB_URL", "directory"),
            host=host,
            port=port,
            public_url=read.text("AOT_PUBLIC_URL", f"http://{host}:{port}"),
            signing_keys=tuple(Path(path).expanduser() for path in keys.split(os.pathsep) if path),
            admin_token=read.secret("AOT_ADMIN_TOKEN"),
            lease=read.seconds("AOT_LEASE_SECONDS", 120),
            max_attempts=read.number("AOT_MAX_ATTEMPTS", 3, int, most=1000),
            attempt_lives=read.seconds("AOT_ATTEMPT_SECONDS", 86400),
            resend_after=read.seconds("AOT_RESEND_SECONDS", 60),
            link_lives=read.seconds("AOT_LINK_SECONDS", 3600),
            seen_every=read.seconds("AOT_SEEN_SECONDS", 30),
            max_body_bytes=read.number("AOT_MAX_BODY_BYTES", 64 << 20, int, most=1 << 40),
            running_limits=read.limits("AOT_NAMESPACE_BUILDS"),
            keep=read.seconds("AOT_KEEP_SECONDS", 90 * 86400),
            keep_out=read.seconds("AOT_KEEP_OUT_SECONDS", 30 * 86400),
            keep_pending=read.seconds("AOT_KEEP_PENDING_SECONDS", 30 * 86400),
            grace=read.seconds("AOT_GRACE_SECONDS", 86400),
            retain_every=read.seconds("AOT_RETAIN_SECONDS", 3600),
        )

    @property
    def worker_lives(self) -> timedelta:
        """A worker is live while it was seen within this."""
        return 3 * self.seen_every

    @property
    def grace_of_blobs(self) -> timedelta:
        """How long bytes outlive the last moment at which a link to them may have been handed out."""
        return max(self.grace, self.link_lives + LINK_MARGIN)

    @property
    def embedded(self) -> bool:
        """True where the database is this data directory's own: `serve` then migrates it by itself."""
        return self.database_url.startswith("sqlite")

    @property
    def token_path(self) -> Path:
        return self.data_dir / TOKEN_FILE

    @property
    def probe_path(self) -> Path:
        """Holds the secret of the serving process's own health check."""
        return self.data_dir / PROBE_FILE


@dataclass(frozen=True)
class _Reader:
    environ: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.environ.get(name) or default

    def secret(self, name: str) -> str:
        value = self.environ.get(name, "").strip()
        if value and (len(value) < LEAST_OF_TOKEN or not value.isascii() or any(map(str.isspace, value))):
            raise InvalidConfig(
                f"{name} has {len(value)} characters, wanted at least {LEAST_OF_TOKEN} of ASCII and no spaces",
                hint="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
        return value

    def limits(self, name: str) -> RunningLimits:
        """Parse `*=8,research=2`: a default for every namespace, and the limits of some."""
        found: dict[str, int] = {}
        for part in filter(None, map(str.strip, self.environ.get(name, "").split(","))):
            namespace, _, count = map(str.strip, part.partition("="))
            if not count.isascii() or not count.isdigit() or namespace in found:
                raise InvalidConfig(
                    f"{name} has the part {part[:80]!r}, wanted NAMESPACE=NUMBER, each namespace once",
                    hint="for example *=8,research=2; 0 lets none run",
                )
            found[namespace] = int(count)
        default = found.pop("*", None)
        try:
            return RunningLimits(default, {Namespace.parse(name): count for name, count in found.items()})
        except InvalidName as error:
            raise InvalidConfig(f"{name}: {error.message}", hint=error.hint) from error

    def seconds(self, name: str, default: float) -> timedelta:
        return timedelta(seconds=self.number(name, default, float, most=10 * 365 * 86400))

    def number(self, name: str, default: Any, kind: Callable[[str], Any], *, most: float) -> Any:
        text = self.environ.get(name)
        if not text:
            return default
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not 0 < value <= most:
            raise InvalidConfig(
                f"{name} is {text[:80]!r}, wanted a number up to {most}", hint=f"the default is {default}"
            )
        return value
