"""Workers, profiles, tokens, receipts and health on the wire."""

from datetime import datetime
from enum import StrEnum

from aot.schema.codec import Document, Response
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.names import Name, Namespace, Reference
from aot.schema.profile import Profile


class Scope(StrEnum):
    """What a token may do. `admin` includes all others."""

    READ = "read"
    SUBMIT = "submit"
    PUSH = "push"
    TAG = "tag"
    CLAIM = "claim"
    BUILD = "build"  # bound to one attempt of one build; handed out by claim alone
    ADMIN = "admin"


class RegisterRequest(Document, kw_only=True):
    """A worker names itself and the profiles it is: its own first, then lower levels that it covers."""

    worker: Name
    profiles: tuple[Profile, ...]


class RegisterReply(Response, kw_only=True):
    queues: tuple[str, ...]  # to consume, best first
    seen_every_seconds: float


class WorkerView(Response, kw_only=True):
    name: Name
    profiles: tuple[Name, ...]
    seen_at: datetime
    live: bool
    build: str | None = None


class WorkerListing(Response, kw_only=True):
    workers: tuple[WorkerView, ...]


class ProfileView(Response, kw_only=True):
    profile: Profile
    live_workers: int
    queued: int
    running: int | None = None  # None: an older registry does not tell; 0 is told, as autoscalers read it
    live_builds: int | None = None  # queued and running
    held: bool = True  # False: no worker is it, nor was lately; a CPU target's toolchain is then that of others


class ProfileListing(Response, kw_only=True):
    profiles: tuple[ProfileView, ...]


class TokenRequest(Document, kw_only=True):
    """`namespaces` empty: all."""

    label: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[Namespace, ...] = ()
    expires_in_seconds: float | None = None


class TokenReply(Response, kw_only=True):
    """The only time the secret is shown; the registry keeps its hash."""

    token: str
    expires_at: datetime | None = None


class Outcome(StrEnum):
    """How a load went."""

    COMPILED = "compiled"
    PARTLY = "partly"  # some regions or coverages run eagerly
    EAGER = "eager"


class Receipt(Document, kw_only=True):
    """One process's account of what it selected, loaded, ran and fell back from."""

    reference: Reference
    bundle: Digest | None
    environment: Environment
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    counters: dict[str, int] = {}  # calls, compiled, eager, guard_misses
    stale_tag: bool = False  # the tag was resolved from the node's cache while the registry was away
    load_seconds: float = 0.0


class HealthReply(Response, kw_only=True):
    status: str
    version: str


class ReadyReply(Response, kw_only=True):
    """`checks`: name to "ok" or what is wrong."""

    ready: bool
    checks: dict[str, str]


class KeysReply(Response, kw_only=True):
    """Public keys that sign now, as `ed25519:<base64>`, and none of before a rotation. Not a trust root."""

    keys: tuple[str, ...]
