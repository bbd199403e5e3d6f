"""A claim costs the same with ten builds waiting as with ten thousand: no statement of it walks through what waits."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from benchmarks.many_artifacts import clone
from tests.builders import a_profile, a_spec
from tests.integration.test_registry_postgres import database_url  # noqa: F401
from tests.service import Service, a_service
from tests.statements import statements

FEW, MANY, NAMESPACES = 30, 3000, 7


def queue(service: Service, builds: int) -> None:
    """Queue so many copies of one build, in several namespaces, and let the planner know how many there are."""
    service.register(a_profile())
    service.submit(a_spec())
    with service.deps.sessions.transaction() as session:
        multiply(session.connection(), builds)
        session.execute(text("ANALYZE"))


def multiply(connection: Connection, builds: int) -> None:
    for number in range(NAMESPACES):
        clone(connection, "namespaces", {"name": f"'ns{number}'"}, "(SELECT 1) n", where="t.name = 'default'")
    counted = f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {builds})"
    namespace = f"'ns' || (i % {NAMESPACES})"
    changed = {"id": f"t.id || ({10 * MANY} + i)", "name": "'model' || i", "namespace": namespace}
    clone(connection, "builds", changed, f"({counted} SELECT i FROM s) n", where="t.name = 'mini'")


@pytest.mark.embedded("counts SQLite's own steps")
def test_a_claim_takes_sqlite_as_many_steps_with_many_waiting_as_with_few(tmp_path: Path) -> None:
    steps = {}
    for builds in (FEW, MANY):
        with a_service(tmp_path / str(builds)) as service:
            queue(service, builds)
            service.claim("cpu-v3")  # the first one of a namespace also adds its row
            steps[builds] = steps_of_a_claim(service)
    assert steps[MANY] < 1.3 * steps[FEW], steps


def steps_of_a_claim(service: Service) -> int:
    """How many instructions SQLite's virtual machine carries out for one claim, to the nearest ten."""
    taken = [0]

    def step() -> None:
        taken[0] += 10

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(step, 10)

    engine = service.deps.sessions.engine
    event.listen(engine, "checkout", watch)
    service.claim("cpu-v3")
    event.remove(engine, "checkout", watch)
    return taken[0]


def test_a_claim_makes_postgresql_look_at_few_rows_of_many(tmp_path: Path, database_url: str) -> None:  # noqa: F811
    with a_service(tmp_path, database_url=database_url) as service:
        queue(service, MANY)
        with statements(service) as sent:
            service.claim("cpu-v3")
        told = [one for one in sent if re.search(r"(FROM|UPDATE) builds", one[0])]
        assert any("WITH RECURSIVE" in statement for statement, _ in told) and len(told) >= 4
        with service.deps.sessions.engine.connect() as connection:  # never committed
            for statement, values in told:
                plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE) {statement}", values)
                lines = [str(row[0]) for row in plan]
                assert rows_seen(lines) <= 2 * NAMESPACES, "\n".join([statement, *lines])


def rows_seen(plan: list[str]) -> float:
    """The most rows of builds that one node of the plan read, those included that a filter threw away."""
    most, loops, of_builds = 0.0, 1.0, False
    for line in plan:
        if found := re.search(r"rows=([\d.]+) loops=([\d.]+)\)$", line):
            of_builds = bool(re.search(r"Scan .*(on builds|builds_)", line))
            loops = float(found[2])
            most = max(most, float(found[1]) * loops) if of_builds else most
        elif of_builds and (found := re.search(r"Rows Removed by [\w ]+: (\d+)", line)):
            most = max(most, float(found[1]) * loops)
    return most
