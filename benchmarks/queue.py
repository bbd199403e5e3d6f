"""The queue under ten thousand waiting builds: what a claim takes, that nothing is built twice, that nobody is starved.

    python -m benchmarks.queue [--builds 10000] [--database postgresql+psycopg://…]

writes `benchmarks/results/queue-<host>.json`. Eight workers in threads, with the tests' fake compiler, talk to the
real application in this process. `claim` is measured from request to answer with 100, 1,000 and `--builds` builds
waiting, by workers that all ask at once; each claim is followed by another submission, so that the queue stays as long.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import structlog
from litestar.testing import TestClient
from sqlalchemy import func, select

from aot.schema.spec import Spec
from aot.schema.wire.builds import CancelRequest
from aot.schema.wire.workers import Scope
from benchmarks.cold_start import RESULTS, default_label, host
from registry.app import create_app_from
from registry.db import builds as rows
from registry.db.blobs import ensure_namespace
from registry.db.migrate import migrate
from registry.db.models import BuildRow, BundleRow
from registry.deps import build_deps
from registry.queue import RecordingQueue
from registry.services import builds
from registry.services.tokens import Principal
from registry.settings import Settings
from tests.builders import a_profile, a_spec
from tests.service import URL, Service

WORKERS = 8
NAMESPACES = 20
CLAIMS = 400
PROFILE = a_profile()
BY = Principal("benchmark", frozenset({Scope.ADMIN}))


def main() -> int:
    options = _parse()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report: dict[str, Any] = {"host": host(), "workers": WORKERS, "namespaces": NAMESPACES}
    report["database"] = "sqlite" if options.database is None else options.database.partition(":")[0]
    depths = sorted({min(depth, options.builds) for depth in (100, 1000, options.builds)})
    report["claims"] = [measure_claims(depth, options.database) for depth in depths]
    for row in report["claims"]:
        print(f"{row['queued']:6} queued: claim p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms", flush=True)
    report["run"] = carry_all(options.builds, options.database)
    print(json.dumps(report["run"]))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"queue-{default_label()}.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["run"]["duplicates"] == report["run"]["left"] == 0 else 1


@contextmanager
def a_registry(queued: int, database: str | None) -> Iterator[Service]:
    """The application on a fresh database, or on an emptied one, with so many builds waiting."""
    with tempfile.TemporaryDirectory(prefix="aot-queue-", ignore_cleanup_errors=True) as folder:
        environ = {"AOT_DATA_DIR": folder, "AOT_PUBLIC_URL": URL, "AOT_LEASE_SECONDS": "3600"}
        settings = Settings.from_environ(environ | ({"AOT_DATABASE_URL": database} if database else {}))
        deps = replace(build_deps(settings), queue=RecordingQueue())
        migrate(deps.sessions)
        with TestClient(create_app_from(deps), base_url=URL) as http:
            service = Service(deps, http, deps.clock, deps.queue, admin="")  # type: ignore[arg-type]
            service = replace(service, admin=_token(service))
            for number in range(WORKERS):
                service.register(PROFILE, worker=f"worker-{number}")
            # The one source of all, uploaded: builds whose source cannot be read wait, and no worker would get one.
            service.call("cancel", CancelRequest(), build=service.submit(_spec(queued)).build.id)
            enqueue(service, queued)
            yield service


def enqueue(service: Service, queued: int) -> None:
    """Submissions without the way over HTTP: what is measured is the queue. Every third is bulk."""
    for start in range(0, queued, 500):
        with service.deps.sessions.transaction() as session:
            for number in range(start, min(start + 500, queued)):
                _insert(number, service, session)


def _spec(number: int) -> Spec:
    """The first namespace has half of all builds, the others share the rest."""
    namespace = f"ns{0 if number % 2 else number % NAMESPACES}"
    return a_spec(f"model{number}", namespace=namespace, profile=PROFILE.name)


def _insert(number: int, service: Service, session: Any) -> None:
    spec = _spec(number)
    now, priority = service.deps.clock(), -10 if _is_bulk(number) else 0
    ensure_namespace(spec.namespace, now=now, session=session)
    row = builds.new_build(spec, profile=PROFILE, tags=(), priority=priority, by=BY, now=now)
    assert rows.insert(row, session)


def _is_bulk(number: int) -> bool:
    return number % 3 == 0


def measure_claims(queued: int, database: str | None, *, claims: int = CLAIMS) -> dict[str, Any]:
    """Milliseconds of a claim with so many builds waiting, of so many claims by all workers at once."""
    numbers = count(queued)
    with a_registry(queued, database) as service:

        def work(worker: int) -> list[float]:
            times = []
            for _ in range(claims // WORKERS):
                begun = time.perf_counter()
                claim = service.claim(PROFILE.name, worker=f"worker-{worker}")
                times.append(1e3 * (time.perf_counter() - begun))
                assert claim.attempt == 1
                with service.deps.sessions.transaction() as session:
                    _insert(next(numbers), service, session)
            return times

        times = [one for some in _by_all(work) for one in some]
        return {"queued": queued, "claims": len(times), **_summary(times)}


def carry_all(queued: int, database: str | None) -> dict[str, Any]:
    """Let the workers empty the queue: claim, compile with the fake, publish."""
    order: list[str] = []
    lock = threading.Lock()
    begun = time.monotonic()
    with a_registry(queued, database) as service:

        def work(worker: int) -> int:
            done = 0
            while (claim := service.ask(PROFILE.name, worker=f"worker-{worker}").claim) is not None:
                with lock:
                    if not _is_bulk(int(str(claim.spec.name).removeprefix("model"))):
                        order.append(str(claim.spec.namespace))
                service.publish(claim)
                done += 1
            return done

        done = sum(_by_all(work))
        with service.deps.sessions.reading() as session:
            states = dict(session.execute(select(BuildRow.state, func.count()).group_by(BuildRow.state)).all())
            bundles = session.scalar(select(func.count()).select_from(BundleRow))
            attempts = session.scalar(select(func.max(BuildRow.attempt)))
    return {
        "queued": queued,
        "seconds": round(time.monotonic() - begun, 1),
        "published": done,
        "bundles": bundles,
        "duplicates": done - int(bundles or 0) + (0 if attempts == 1 else 1),
        "left": queued - int(states.get("published", 0)),
        "longest_wait_turns": longest_wait(order),
    }


def longest_wait(order: list[str]) -> int:
    """The most turns that others got between two turns of a namespace, which had builds waiting all along."""
    last: dict[str, int] = {}
    longest = 0
    for at, namespace in enumerate(order):
        longest = max(longest, at - last.get(namespace, -1) - 1)
        last[namespace] = at
    return longest


def _by_all(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, range(WORKERS)))


def _summary(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2), "most_ms": round(max(times), 2)}


def _token(service: Service) -> str:
    from registry.services import tokens

    with service.deps.sessions.transaction() as session:
        return tokens.issue("benchmark", scopes=(Scope.ADMIN,), now=service.deps.clock(), session=session)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=10_000)
    parser.add_argument("--database", help="an empty PostgreSQL database; default: SQLite")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
