"""`run_build`: what a ticket wakes a worker for, from claim to publish (design.md, section 5).

Whatever goes wrong here ends as a state of the build, never as the end of the worker.
"""

import contextlib
import errno
import functools
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any

from aot.bundle import blob_of
from aot.client import RegistryClient
from aot.client.refusals import is_of_link
from aot.compile.tuned import TuningStore
from aot.errors import (
    AotError,
    BlobMissing,
    BlobNotFound,
    BuildFinished,
    BuildNotClaimable,
    CompileStopped,
    DigestMismatch,
    Forbidden,
    InvalidConfig,
    InvalidDigest,
    InvalidSource,
    LeaseLost,
    LocalStorageFull,
    RegistryError,
    SizeMismatch,
    StorageUnavailable,
    TagMoved,
)
from aot.pipeline import Question, Staged, build_bundle, fetch_source, publish_bundle, requalify_bundle
from aot.pipeline.measurements import fetch_measurements
from aot.pipeline.union import fetch_bases, join_again
from aot.sandbox import Bubblewrap
from aot.schema.digest import Digest
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.builds import SHUTTING_DOWN, Claim
from worker.attempt import AWAY, Attempt
from worker.scratch import scratch_directory

log = logging.getLogger("worker")
# A full disk is not the build's fault, and another worker may do better; but not for ever.
MOST_HOST_FAULTS = 5
HOST_FAILED = "the worker's disk, memory or network failed"
MOST_JOINS = 10


class BadTransfer(OSError):
    """What the registry has a link to did not come as it is. `damaged`: blobs of which other bytes came."""

    def __init__(self, message: str, *, damaged: tuple[Digest, ...]) -> None:
        super().__init__(errno.EIO, message)
        self.damaged = damaged


class Ended(StrEnum):
    NOTHING = "nothing"  # the build was taken, finished or cancelled, and no other waits
    PUBLISHED = "published"
    FAILED = "failed"
    STOPPED = "stopped"  # cancelled, or the lease went to another worker
    RELEASED = "released"


@dataclass(frozen=True)
class Bench:
    """What a worker works with."""

    name: Name
    client: RegistryClient
    profiles: tuple[Profile, ...]
    scratch: Path
    shared_caches: Path
    sandbox: Bubblewrap | None
    trust_sources: frozenset[str]
    stopping: Event  # set when the worker shuts down: the attempt ends and its build is given back


def run_build(bench: Bench) -> Ended:
    """Claim the best build that waits, and carry it through. Returns how the attempt ended.

    Raises Unavailable or NotARegistry when the registry cannot be asked for work, and what it refuses a claim with;
    then nothing was claimed.
    """
    if bench.stopping.is_set():
        return Ended.NOTHING
    names = tuple(profile.name for profile in bench.profiles)
    asked_at = time.monotonic()
    try:
        # Not that of the ticket by name: the registry knows what is best now, and whose turn it is.
        claim = bench.client.claim(bench.name, profiles=names).claim
    except BuildNotClaimable:
        return Ended.NOTHING
    if claim is None:
        return Ended.NOTHING
    log.info("claimed build=%s attempt=%d name=%s", claim.build, claim.attempt, claim.spec.name)
    with Attempt(bench.client, claim, asked_at=asked_at, stopping=bench.stopping) as attempt:
        ended = _attempt(attempt, bench)
    log.info("ended build=%s attempt=%d outcome=%s", claim.build, claim.attempt, ended)
    return ended


def _attempt(attempt: Attempt, bench: Bench) -> Ended:
    try:
        _carry_through(attempt, bench)
        return Ended.PUBLISHED
    except (CompileStopped, LeaseLost, BuildFinished) as error:
        log.info("stopped build=%s reason=%s", attempt.claim.build, error.message)
        return _release(attempt, SHUTTING_DOWN) if bench.stopping.is_set() else Ended.STOPPED
    except BadTransfer as error:
        return _after_bad_transfer(attempt, error)
    except (OSError, MemoryError, LocalStorageFull) as error:
        return _after_host_fault(attempt, error)
    except AWAY as error:
        # What the store holds under a digest may be wrong since long, where nothing can be written over it.
        return _release(attempt, error.message, damaged=_digests_in(error))
    except AotError as error:
        # A shutdown that reaches the children first looks like a compiler that crashed.
        return _release(attempt, SHUTTING_DOWN) if bench.stopping.is_set() else _fail(attempt, error)
    except (KeyboardInterrupt, SystemExit):
        bench.stopping.set()
        _release(attempt, SHUTTING_DOWN)
        raise
    except Exception as error:  # a fault of ours must not end the worker, and must be seen
        log.exception("fault build=%s", attempt.claim.build)
        return _fail(attempt, AotError(f"a fault in the worker: {type(error).__name__}: {error}"))


def _carry_through(attempt: Attempt, bench: Bench) -> None:
    claim = attempt.claim
    _refuse_untrusted(claim, bench)
    with scratch_directory(bench.scratch, claim.build) as scratch, attempt.follow(scratch / "work"):
        staged = _build(attempt, bench, scratch)
        attempt.on_event({"phase": "uploading"})
        attempt.settle()
        for left in reversed(range(MOST_JOINS)):
            try:
                attempt.patiently(functools.partial(_publish, attempt, staged))
                return
            except TagMoved as error:
                # Of a union: another pod's went live since. Nothing is run again, and nothing of either is lost.
                if not left:
                    raise
                log.info("join-again build=%s reason=%s", claim.build, error.message)
            joined = attempt.patiently(functools.partial(_join_again, attempt, staged, scratch / f"join-{left}"))
            # It has all bytes of the one before, which may be many.
            shutil.rmtree(scratch / f"join-{left + 1}", ignore_errors=True)
            staged = joined


def _publish(attempt: Attempt, staged: Staged) -> None:
    """Upload and publish. Raises StorageUnavailable for what did not arrive as it was sent, and is to be sent again.

    An hour's build hangs on it: the way or the store is at fault then, and neither the build nor this host. Raises
    OSError where the file itself is not what it was.
    """
    try:
        publish_bundle(
            attempt.client,
            staged,
            build=attempt.claim.build,
            with_measurements=attempt.claim.keeps_measurements,
            on_event=attempt.on_event,
            should_stop=attempt.should_stop,
        )
    except (BlobMissing, DigestMismatch, SizeMismatch, InvalidSource) as error:
        _require_whole(staged)
        log.warning("upload-again build=%s error=%s", attempt.claim.build, error.message)
        raise StorageUnavailable(
            f"an upload did not arrive as it was sent: {error.message}", hint=error.hint, details=error.details
        ) from error
    except InvalidConfig as error:
        raise _store_refuses(error) from error
    except RegistryError as error:
        if not _is_of_way(error):
            raise
        # Of a link to put: a proxy's page, or parts that were given up meanwhile; or it has expired, as it soon does
        # where the clocks of registry and store differ. There will be new links.
        raise StorageUnavailable(error.message, hint=error.hint) from error


def _store_refuses(error: InvalidConfig) -> StorageUnavailable:
    """The registry's store refuses the registry, or it is set up wrong; no build can help that, and people can."""
    return StorageUnavailable(error.message, hint=error.hint)


def _is_of_way(error: RegistryError) -> bool:
    """Whether a link was refused or led to nothing; the registry's own refusals end the build."""
    return is_of_link(error) or isinstance(error, BlobNotFound)


def _require_whole(staged: Staged) -> None:
    """Raises OSError where this disk has lost or changed a file of the bundle."""
    for digest, path in staged.paths.items():
        if blob_of(path).digest != digest:
            raise OSError(errno.EIO, f"{path.name} of the bundle is not what was written")


def _join_again(attempt: Attempt, staged: Staged, scratch: Path) -> Staged:
    with _fetching():
        return join_again(
            staged, attempt.client, tags=attempt.claim.tags, scratch=scratch, should_stop=attempt.should_stop
        )


@contextlib.contextmanager
def _fetching() -> Iterator[None]:
    """Raises BadTransfer for bytes that come damaged or are refused, so that another attempt fetches them.

    The registry had hashed them: the way or the store is at fault, and the next look may be right. A link that is
    refused has run out, or a clock was wrong for a while; another claim brings another one. One that leads to nothing
    is of a blob that was found wrong meanwhile and waits for the right bytes. Raises StorageUnavailable where the
    store refuses the registry.
    """
    try:
        yield
    except InvalidConfig as error:
        raise _store_refuses(error) from error
    except (DigestMismatch, SizeMismatch, RegistryError) as error:
        if isinstance(error, RegistryError) and not _is_of_way(error):
            raise
        raise BadTransfer(error.message, damaged=_digests_in(error)) from error


def _digests_in(error: AotError) -> tuple[Digest, ...]:
    """The blob that an error is about, whoever has found it; the registry looks at it."""
    found = error.details.get("digest")
    try:
        return (Digest.parse(found),) if isinstance(found, str) else ()
    except InvalidDigest:  # of a server that words it otherwise
        return ()


def _build(attempt: Attempt, bench: Bench, scratch: Path) -> Staged:
    claim = attempt.claim
    question = Question(spec=claim.spec, profile=claim.profile, build_key=claim.build_key, factors=claim.factors)
    attempt.on_event({"phase": "fetching"})
    with _fetching():
        source = fetch_source(
            attempt.client, claim.spec, claim.links, into=scratch / "source", should_stop=attempt.should_stop
        )
    if claim.measurements is not None:
        fetch_measurements(
            attempt.client,
            claim.measurements,
            store=TuningStore(bench.shared_caches, claim.profile, claim.spec.namespace),
            into=scratch / "measurements",
            on_event=attempt.on_event,
            should_stop=attempt.should_stop,
        )
    build = build_bundle if claim.requalify is None else requalify_bundle
    extra: dict[str, Any] = {}
    if claim.requalify is not None:
        with _fetching():
            bases = fetch_bases(
                attempt.client, claim.spec, tags=claim.tags, into=scratch / "bases", should_stop=attempt.should_stop
            )
        extra = {"digest": claim.requalify, "client": attempt.client, "bases": bases, "fetching": _fetching}
    return build(
        question,
        source,
        scratch=scratch / "work",
        shared_caches=bench.shared_caches,
        sandbox=bench.sandbox,
        builder=str(bench.name),
        on_event=attempt.on_event,
        should_stop=attempt.should_stop,
        **extra,
    )


def _refuse_untrusted(claim: Claim, bench: Bench) -> None:
    """Without a sandbox only the sources of namespaces that this worker was told to trust may run."""
    if bench.sandbox is None and claim.spec.namespace not in bench.trust_sources:
        raise Forbidden(
            f"this worker has no sandbox and does not trust sources of namespace {claim.spec.namespace}",
            hint="install bubblewrap on the worker, or set AOT_TRUST_SOURCES",
        )


def _after_host_fault(attempt: Attempt, error: Exception) -> Ended:
    """Give the build back, unless hosts have failed under it too often: then it may be what fills or breaks them."""
    claim = attempt.claim
    reason = f"{HOST_FAILED}: {error or type(error).__name__}"
    log.error("host-fault build=%s error=%s", claim.build, reason)
    # An older registry counts attempts alone, whatever ended them.
    before = claim.attempt - 1 if claim.host_faults is None else claim.host_faults
    if before + 1 < MOST_HOST_FAULTS:
        return _release(attempt, reason, host_fault=True)
    hint = f"hosts failed in {before + 1} attempts at it; see the workers' disks, then `aot retry` it"
    return _fail(attempt, AotError(reason, hint=hint))


def _after_bad_transfer(attempt: Attempt, error: BadTransfer) -> Ended:
    """Give the build back, however often: neither the build nor who sent its bytes has done anything wrong.

    The registry looks at what came damaged; what is wrong in the store is waited for.
    """
    reason = f"what it has to read came damaged or not at all: {error.strerror}"
    log.error("bad-transfer build=%s error=%s", attempt.claim.build, reason)
    return _release(attempt, reason, damaged=error.damaged)


def _fail(attempt: Attempt, error: AotError) -> Ended:
    return Ended.FAILED if attempt.fail(error) else Ended.STOPPED


def _release(attempt: Attempt, reason: str, *, damaged: tuple[Digest, ...] = (), host_fault: bool = False) -> Ended:
    return Ended.RELEASED if attempt.release(reason, damaged=damaged, host_fault=host_fault) else Ended.STOPPED
