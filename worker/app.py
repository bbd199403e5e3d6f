"""Builds the worker's object graph and runs its Celery consumer.

Pool solo and prefetch 1: one build at a time, its children do the work. The profile is registered before the first
message is taken, and again every few seconds, so that the registry sees a live worker.
"""

import logging
import threading
from pathlib import Path

from aot.broker import celery_settings, make_folders
from celery import Celery
from celery.signals import worker_shutting_down

from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.environment import observe_environment
from aot.errors import AotError, Conflict, InvalidInput, Unavailable
from aot.pipeline import observe_profiles
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.workers import RegisterReply
from worker.run import Bench
from worker.scratch import clear_scratch
from worker.settings import Settings
from worker.tasks import add_task

log = logging.getLogger("worker")
RETRY_SECONDS = 1.0


class Presence:
    """Registers the worker's profiles, and again every few seconds, from a thread of its own."""

    def __init__(self, client: RegistryClient, name: Name, profiles: tuple[Profile, ...], *, every: float) -> None:
        self._client = client
        self._name = name
        self._profiles = profiles
        self._every = every
        self._ended = threading.Event()

    def register(self) -> RegisterReply:
        """Return once the registry knows this worker. Waits while it cannot be reached; raises what it refuses."""
        while True:
            try:
                return self._client.register_worker(self._name, profiles=self._profiles)
            except Unavailable as error:
                log.warning("registry-away error=%s", error.message)
                self._ended.wait(RETRY_SECONDS)

    def keep(self) -> None:
        threading.Thread(target=self._run, name="presence", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._client.register_worker(self._name, profiles=self._profiles)
            except Conflict as error:
                log.error("profile-conflict error=%s", error.message)
            except AotError as error:
                log.warning("registry-away error=%s", error.message)


def run_worker(settings: Settings) -> None:
    """Serve builds until told to stop. Raises InvalidConfig, Conflict and Unauthenticated at start."""
    client = open_client(settings.url, settings.token)
    sandbox = find_sandbox()
    if not isinstance(sandbox, Bubblewrap):
        log.warning("no-sandbox reason=%s trusted=%s", sandbox, sorted(settings.trust_sources))
    profiles = observe_profiles(observe_environment(), only=settings.profile)
    if not profiles:
        raise InvalidInput(f"this host is not a profile named {settings.profile}", hint="`aot doctor` shows what it is")
    presence = Presence(client, settings.name, profiles, every=settings.seen_seconds)
    reply = presence.register()
    presence.keep()
    bench = Bench(
        name=settings.name,
        client=client,
        profiles=profiles,
        scratch=settings.data_dir / "scratch" / settings.name,
        shared_caches=settings.data_dir / "toolchain",
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        trust_sources=settings.trust_sources,
        stopping=threading.Event(),
    )
    clear_scratch(bench.scratch)
    log.info("serving name=%s queues=%s", settings.name, ",".join(reply.queues))
    create_app(settings, bench).worker_main(_arguments(settings.name, reply.queues, settings.data_dir))


def create_app(settings: Settings, bench: Bench) -> Celery:
    """The Celery app with its one task."""
    app = Celery("aot-worker")
    conf = celery_settings(settings.broker_url, data_dir=settings.data_dir)
    make_folders(conf)
    app.conf.update(conf)
    add_task(app, bench)
    # A first SIGTERM makes Celery wait for the task; the task must not take its hour then.
    worker_shutting_down.connect(lambda **_: bench.stopping.set(), weak=False)
    return app


def _arguments(name: Name, queues: tuple[str, ...], data_dir: Path) -> list[str]:
    return [
        "worker",
        "--pool=solo",
        "--loglevel=INFO",
        f"--hostname={name}@worker",
        f"--queues={','.join(queues)}",
        "--without-gossip",
        "--without-mingle",
    ]
