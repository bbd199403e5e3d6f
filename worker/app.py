"""Builds the worker's object graph and runs its Celery consumer.

Pool solo and prefetch 1: one build at a time, its children do the work. The profile is registered before the first
message is taken.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_shutting_down

from aot.broker import celery_settings, make_folders
from aot.client.connect import open_client
from aot.emulator import Emulator, NoEmulator, find_emulator
from aot.environment import observe_environment
from aot.pipeline import observe_profiles
from aot.qualify.emulated import host_of, needs_emulation
from aot.sandbox import Bubblewrap, find_sandbox, python_path
from aot.schema.names import Name
from aot.schema.profile import Profile
from worker.names import kept_name
from worker.presence import Presence
from worker.run import Bench
from worker.scratch import own_scratch
from worker.settings import Settings
from worker.tasks import add_task

log = logging.getLogger("worker")


def run_worker(settings: Settings) -> None:
    """Serve builds until told to stop, and then raise SystemExit.

    Raises at start InvalidConfig, InvalidProfile, DirectoryInUse, and the Conflict, Unauthenticated or Forbidden that
    the registry answers the registration with.
    """
    with _named(settings) as (settings, scratch):
        bench = _bench_of(settings, scratch)
        app = create_app(settings, bench)
        presence = Presence(bench.client, bench.name, bench.profiles)
        reply = presence.register()
        presence.keep(every=reply.seen_every_seconds)
        log.info("serving name=%s queues=%s", settings.name, ",".join(reply.queues))
        try:
            app.worker_main(_arguments(settings.name, reply.queues))
        finally:
            presence.end()


@contextlib.contextmanager
def _named(settings: Settings) -> Iterator[tuple[Settings, Path]]:
    """Settle the worker's name, and hold the scratch directory of that name."""
    if settings.is_named:
        with own_scratch(settings.data_dir / "scratch", settings.name) as scratch:
            yield settings, scratch
    else:
        with kept_name(settings.data_dir, settings.name) as (name, scratch):
            yield replace(settings, name=name), scratch


def create_app(settings: Settings, bench: Bench) -> Celery:
    """The Celery app with its one task. Raises InvalidConfig for a broker or queue directory that cannot be used."""
    app = Celery("aot-worker")
    conf = celery_settings(settings.broker_url, data_dir=settings.data_dir)
    make_folders(conf)
    app.conf.update(
        conf,
        worker_consumer="worker.consumer:PatientConsumer",
        broker_connection_max_retries=None,  # a broker may be away for as long as it likes
    )
    add_task(app, bench)

    def stop(**_: Any) -> None:
        # Celery waits for the task after a first SIGTERM or Ctrl-C; the task must not take its hour then.
        bench.stopping.set()

    worker_shutting_down.connect(stop, weak=False)
    return app


def _bench_of(settings: Settings, scratch: Path) -> Bench:
    python_path()  # raises here, and not in each build
    sandbox = find_sandbox()
    if not isinstance(sandbox, Bubblewrap):
        log.warning("no-sandbox reason=%s trusted=%s", sandbox.reason, ",".join(sorted(settings.trust_sources)))
    environment = observe_environment()
    profiles = observe_profiles(environment, only=settings.profile)
    for profile in profiles:
        if needs_emulation(profile, host_of(profile, environment.node)):
            tell_emulator(profile)
    return Bench(
        name=settings.name,
        client=open_client(settings.url, settings.token),
        profiles=profiles,
        scratch=scratch,
        shared_caches=settings.data_dir / "toolchain",
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        trust_sources=settings.trust_sources,
        stopping=threading.Event(),
    )


def tell_emulator(profile: Profile) -> None:
    """Note at start what a proof for a lower level will be worth here."""
    match find_emulator(profile.capability):
        case Emulator() as found:
            log.info("emulator profile=%s program=%s cpu=%s", profile.name, found.version, found.cpu.model)
        case NoEmulator(reason=reason):
            log.warning("no-emulator profile=%s reason=%s", profile.name, reason)


def _arguments(name: Name, queues: tuple[str, ...]) -> list[str]:
    return [
        "worker",
        "--pool=solo",
        "--concurrency=1",  # also what prefetch is counted by
        "--loglevel=INFO",
        f"--hostname={name}@worker",
        f"--queues={','.join(queues)}",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ]
