"""What a monitoring system is told, as Prometheus reads it: the queue, the fleet and this process, as they are now.

Nothing is counted while the registry works: a scrape asks the database, in as many statements whatever it holds, none
of which reads builds that have ended. All replicas tell the same of it, so HELP says to take the maximum.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy.orm import Session

from aot import __version__
from aot.errors import Forbidden
from aot.schema.names import Name
from aot.schema.state import BuildState
from aot.schema.wire.workers import Scope
from registry.clock import time_of
from registry.db import damage, queue
from registry.db import fleet as fleet_rows
from registry.deps import Deps
from registry.services.tokens import Principal

SAME = "Every replica tells the same: take max, not sum."


def exposition(deps: Deps, *, by: Principal) -> bytes:
    """The metrics in Prometheus' text format.

    Raises Forbidden for a token without the scope `read`, or of some namespaces only, and StorageUnavailable.
    """
    by.require(Scope.READ)
    if by.namespaces:
        raise Forbidden(
            f"metrics count the builds of all namespaces, the token is for {', '.join(by.namespaces)}",
            hint="ask an administrator of the registry for a token of the scope read for all namespaces",
        )
    # A registry of this scrape alone: the library's global one belongs to whoever imports it.
    scraped = CollectorRegistry()
    scraped.register(ServiceCollector(deps))
    ProcessCollector(registry=scraped)
    return generate_latest(scraped)


class ServiceCollector:
    """What the database knows, read when it is collected."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    def collect(self) -> Iterable[Metric]:
        """Raises StorageUnavailable."""
        yield InfoMetricFamily("aot_registry", "The registry that answers.", value={"version": __version__})
        now = self._deps.clock()
        with self._deps.sessions.reading() as session:
            families = (
                *_by_profile(now, session, live_since=now - self._deps.settings.worker_lives),
                *_whole(now, session),
            )
        yield from families


def _by_profile(now: datetime, session: Session, *, live_since: datetime) -> Iterator[Metric]:
    """Of every profile there is; where nothing is counted the value is 0, so that an alert can compare."""
    presence = fleet_rows.presence(session, seen_since=live_since)
    rows = {(row.state, row.profile): row for row in queue.live_by_profile(session)}

    def builds(state: BuildState) -> Callable[[Name], float]:
        return lambda profile: rows[state, profile].builds if (state, profile) in rows else 0

    def waited(profile: Name) -> float:
        row = rows.get((BuildState.QUEUED, profile))
        return _seconds(now, row and time_of(row.oldest))

    names = [row.profile for row in presence]
    yield _of_profiles("aot_builds_queued", "Builds that wait for a worker.", names, builds(BuildState.QUEUED))
    yield _of_profiles("aot_builds_running", "Builds that a worker works on.", names, builds(BuildState.RUNNING))
    waits = "Seconds since the oldest queued build was submitted, with the attempts it had; 0 where none waits."
    yield _of_profiles("aot_build_longest_wait_seconds", waits, names, waited)
    live = {row.profile: row.live for row in presence}
    lives = "Workers seen lately; one that is several profiles counts in each."
    yield _of_profiles("aot_workers_live", lives, names, live.__getitem__)
    seen = {row.profile: row.seen_at.timestamp() for row in presence if row.seen_at is not None}
    lately = "When a worker of the profile was last seen; absent where none ever was."
    yield _of_profiles("aot_worker_last_seen_timestamp_seconds", lately, list(seen), seen.__getitem__)


def _whole(now: datetime, session: Session) -> Iterator[Metric]:
    overdue = _seconds(now, queue.first_lease_end(session))
    late = (
        "Seconds since the lease of a running build ran out, of all such the longest; the sweeper ends it at its pass."
    )
    yield GaugeMetricFamily("aot_lease_overdue_seconds", f"{late} {SAME}", value=overdue)
    damaged = "Bundles taken out of selection because some of their bytes are damaged or missing."
    yield GaugeMetricFamily("aot_bundles_damaged", f"{damaged} {SAME}", value=damage.count_damaged(session))


def _of_profiles(name: str, says: str, profiles: Iterable[Name], value: Callable[[Name], float]) -> Metric:
    family = GaugeMetricFamily(name, f"{says} {SAME}", labels=["profile"])
    for profile in profiles:
        family.add_metric([str(profile)], value(profile))
    return family


def _seconds(now: datetime, since: datetime | None) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
