"""Builds on the wire: submit, follow, claim, renew, report."""

from datetime import datetime

from aot.schema.codec import Document, Response
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor
from aot.schema.names import Name, Namespace, Tag
from aot.schema.profile import Profile
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import Spec
from aot.schema.state import BuildState
from aot.schema.wire.blobs import Link
from aot.schema.wire.errors import ErrorBody


class Ticket(Document, kw_only=True):
    """The one queue message: "look at build N". Lost, late and duplicate tickets are harmless."""

    build: str


class SubmitRequest(Document, kw_only=True):
    """`tags` move to the bundle when it is published.

    Builds of `priority` 0 or more are interactive, those below are bulk and wait for every namespace's interactive
    ones. Within a namespace a higher priority is claimed first.
    """

    spec: Spec
    tags: tuple[Tag, ...] = ()
    priority: int = 0


NOT_RUN = "not run: "  # how `waiting` begins where no host has run what the build is to prove


class BuildView(Response, kw_only=True):
    id: str
    namespace: Namespace
    name: Name
    profile: Name
    build_key: BuildKey
    state: BuildState
    attempt: int
    created_at: datetime
    phase: Phase | None = None
    step: str = ""  # "region 2 of 5"
    waiting: str = ""  # why a queued build waits: no live worker, a requirement that none has
    started_at: datetime | None = None
    finished_at: datetime | None = None
    bundle: Digest | None = None
    error: ErrorBody | None = None
    report: CompileReport | None = None
    tags: tuple[Tag, ...] = ()
    frozen: bool = False


class SubmitReply(Response, kw_only=True):
    """`created` False: a live build, or a bundle, with this key existed already."""

    build: BuildView
    created: bool


class BuildListing(Response, kw_only=True):
    builds: tuple[BuildView, ...]
    next: str | None = None  # pass as `after` to read on


class LogLine(Response, kw_only=True):
    sequence: int
    at: datetime
    text: str


class BuildLog(Response, kw_only=True):
    lines: tuple[LogLine, ...]


class ClaimRequest(Document, kw_only=True):
    """A worker asks for work that fits it: `build` if that is still waiting, else the one whose turn it is."""

    worker: Name
    profiles: tuple[Name, ...]
    build: str | None = None


class Claim(Response, kw_only=True):
    """The right to work on a build until the lease expires. `token` is bound to this attempt."""

    build: str
    attempt: int
    spec: Spec
    profile: Profile
    build_key: BuildKey
    factors: tuple[Factor, ...]
    token: str
    lease_expires_at: datetime
    lease_seconds: float
    links: tuple[Link, ...]  # source and weights
    requalify: Digest | None = None  # prove this pending bundle instead of compiling
    tags: tuple[Tag, ...] = ()  # that are to stand for the bundle
    measurements: Link | None = None  # what tuning has measured in the namespace's last build of such a profile
    keeps_measurements: bool = False  # what this build measures may be sent with its bundle
    host_faults: int | None = None  # after which it was given back before; None: an older registry does not count them


class ClaimReply(Response, kw_only=True):
    claim: Claim | None = None
    waiting: str = ""  # why nothing was handed out


class RenewReply(Response, kw_only=True):
    lease_expires_at: datetime
    stop: str | None = None  # why the worker must stop: cancelled


class ProgressRequest(Document, kw_only=True):
    """Where an attempt stands, and the log lines since the last one."""

    phase: Phase | None = None
    step: str = ""
    lines: tuple[str, ...] = ()


class FailRequest(Document, kw_only=True):
    error: ErrorBody
    report: CompileReport | None = None


# The `reason` of a release that says nothing of the build.
SHUTTING_DOWN = "the worker is shutting down"


class ReleaseRequest(Document, kw_only=True):
    """Give the build back to the queue: the worker shuts down or cannot build it here."""

    reason: str
    damaged: tuple[Digest, ...] = ()  # blobs whose links led to other bytes, as the worker saw them
    host_fault: bool = False  # the worker's disk or memory failed: too many of these end a build


class CancelRequest(Document, kw_only=True):
    reason: str = ""


class RetryRequest(Document, kw_only=True):
    """Build the spec of a failed or cancelled build again; `reason` is kept with the new build."""

    reason: str = ""
