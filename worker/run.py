"""`run_build`: one look at the queue's hint, from claim to publish (design.md, section 5).

Whatever goes wrong here ends as a state of the build, never as the end of the worker.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event

from aot.client import RegistryClient
from aot.errors import (
    AotError,
    BuildFinished,
    BuildNotClaimable,
    CompileFailed,
    CompileStopped,
    Forbidden,
    IntegrityFailed,
    InvalidInput,
    LeaseLost,
    Unavailable,
)
from aot.pipeline import Question, build_bundle, fetch_source, publish_bundle, requalify_bundle
from aot.sandbox import Bubblewrap
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.builds import Claim
from aot.schema.wire.errors import ErrorBody
from worker.attempt import Attempt
from worker.scratch import scratch_directory

log = logging.getLogger("worker")
SHUTTING_DOWN = "the worker is shutting down"


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


def run_build(build: str | None, bench: Bench) -> Ended:
    """Claim `build`, or the best one that waits, and carry it through. Returns how the attempt ended.

    Raises Unavailable when the registry cannot be asked for work; then nothing was claimed.
    """
    names = tuple(profile.name for profile in bench.profiles)
    try:
        claim = bench.client.claim(bench.name, profiles=names, build=build).claim
    except BuildNotClaimable:
        return Ended.NOTHING
    if claim is None:
        return Ended.NOTHING
    log.info("claimed build=%s attempt=%d name=%s", claim.build, claim.attempt, claim.spec.name)
    client = bench.client.with_token(claim.token)
    with Attempt(client, claim, stopping=bench.stopping) as attempt:
        try:
            _carry_through(claim, attempt, client, bench)
            ended = Ended.PUBLISHED
        except (CompileStopped, LeaseLost, BuildFinished) as error:
            log.info("stopped build=%s reason=%s", claim.build, error.message)
            ended = _release(claim, client, SHUTTING_DOWN) if bench.stopping.is_set() else Ended.STOPPED
        except (CompileFailed, InvalidInput, IntegrityFailed, Forbidden) as error:
            ended = _fail(claim, attempt, client, error)
        except Unavailable as error:
            ended = _release(claim, client, error.message)
        except AotError as error:
            ended = _fail(claim, attempt, client, error)
        except OSError as error:
            ended = _release(claim, client, f"the worker's disk or memory failed: {error}")
        except (KeyboardInterrupt, SystemExit):
            _release(claim, client, SHUTTING_DOWN)
            raise
        except Exception as error:  # a fault of ours must not end the worker, and must be seen
            log.exception("fault build=%s", claim.build)
            ended = _fail(claim, attempt, client, AotError(f"a fault in the worker: {type(error).__name__}: {error}"))
    log.info("ended build=%s outcome=%s", claim.build, ended)
    return ended


def _carry_through(claim: Claim, attempt: Attempt, client: RegistryClient, bench: Bench) -> None:
    _refuse_untrusted(claim, bench)
    question = Question(spec=claim.spec, profile=claim.profile, build_key=claim.build_key, factors=claim.factors)
    with scratch_directory(bench.scratch, claim.build) as scratch:
        attempt.on_event({"phase": "fetching"})
        source = fetch_source(client, claim.spec, claim.links, into=scratch / "source")
        build = build_bundle if claim.requalify is None else requalify_bundle
        extra = {} if claim.requalify is None else {"digest": claim.requalify, "client": client}
        staged = build(
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
        attempt.on_event({"phase": "uploading"})
        attempt.tell()
        publish_bundle(client, staged, build=claim.build, on_event=attempt.on_event)


def _refuse_untrusted(claim: Claim, bench: Bench) -> None:
    """Without a sandbox only the sources of namespaces that this worker was told to trust may run."""
    if bench.sandbox is None and claim.spec.namespace not in bench.trust_sources:
        raise Forbidden(
            f"this worker has no sandbox and does not trust sources of namespace {claim.spec.namespace}",
            hint="install bubblewrap on the worker, or set AOT_TRUST_SOURCES",
        )


def _fail(claim: Claim, attempt: Attempt, client: RegistryClient, error: AotError) -> Ended:
    try:
        attempt.tell()
        client.fail(claim.build, error=ErrorBody.of(error))
    except AotError as refused:
        log.warning("fail-not-told build=%s error=%s", claim.build, refused.message)
    return Ended.FAILED


def _release(claim: Claim, client: RegistryClient, reason: str) -> Ended:
    try:
        client.release(claim.build, reason=reason)
    except AotError as refused:
        # The lease runs out by itself.
        log.warning("release-not-told build=%s error=%s", claim.build, refused.message)
    return Ended.RELEASED
