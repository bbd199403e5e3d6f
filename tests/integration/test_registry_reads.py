"""What a request or a pass reads does not grow with what has ended: builds are kept for good, and so are workers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.schema.names import Namespace
from registry.db.builds import live_builds
from registry.db.retention import specs_of_live_builds
from registry.services import fleet, unproven
from registry.services.sweep import sweep
from tests.builders import a_manifest, a_profile, a_readable_artifact, a_source, a_spec
from tests.service import Service, a_service
from tests.statements import plan_of, statements

# A walk over builds, unless by an index of those alone that live.
OF_LIVE = r"(ix_builds_(live|ready|queued|running)|uq_builds_live_\w+)\b"
WALK = re.compile(rf"SCAN builds(?! USING (COVERING )?INDEX {OF_LIVE})|Seq Scan on builds\b")
INDEX = re.compile(r"(?:Scan.* using|Bitmap Index Scan on) (\w+_builds_\w+|builds_\w+)")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def push(service: Service, name: str) -> None:
    service.push(a_manifest(a_spec(name, source=a_source(name.encode())), artifacts=(a_readable_artifact(),)))


def walks(service: Service, sent: list[tuple[str, Any]]) -> list[str]:
    """Those that read every build there ever was."""
    with service.deps.sessions.engine.connect() as connection:
        found = []
        for statement, parameters in sent:
            if statement.startswith(("SELECT", "UPDATE", "WITH")) and "builds" in statement:
                found += [statement] if is_walk(plan_of(statement, parameters, connection)) else []
    return found


def is_walk(plan: list[str]) -> bool:
    """Of SQLite a line is a step; of PostgreSQL a step begins with an arrow, and its conditions follow."""
    for step in "\n".join(plan).split("->"):
        read = INDEX.search(step)
        if read is not None and "Index Cond" not in step and not re.match(OF_LIVE, read[1]):
            return True
    return any(map(WALK.search, plan))


def test_a_listing_asks_once_for_all_bundles_that_wait_for_their_proof(service: Service) -> None:
    counts = []
    for name in ("one", "two", "three"):
        push(service, name)
        with statements(service) as sent:
            listed = service.call("search").bundles
        counts.append((len(listed), len(sent)))
        assert {bundle.state for bundle in listed} == {"pending"}
    assert [listed for listed, _ in counts] == [1, 2, 3] and len({sent for _, sent in counts}) == 1


def of_session(act: Callable[..., Any], **named: Any) -> Callable[[Service], Any]:
    def run(service: Service) -> Any:
        with service.deps.sessions.reading() as session:
            return act(session=session, **named)

    return run


@pytest.mark.parametrize(
    "act",
    [
        lambda service: service.call("search"),
        lambda service: service.call("list_workers"),
        lambda service: service.call("list_profiles"),
        lambda service: sweep(service.deps),
        lambda service: unproven.reject_unproven(service.deps),
        of_session(specs_of_live_builds),
        of_session(live_builds, asked=[(Namespace("default"), a_spec("one").name, "sha256:" + "0" * 64)]),
    ],
    ids=["search", "list_workers", "list_profiles", "sweep", "unproven", "retention", "find"],
)
def test_builds_that_have_ended_are_not_read(service: Service, act: Callable[[Service], Any]) -> None:
    push(service, "one")
    service.submit(a_spec("two", source=a_source(b"two")))
    service.claim("cpu-v3")
    with statements(service) as sent:
        act(service)
    assert sent and walks(service, sent) == []


def test_a_statement_that_reads_them_is_found(service: Service) -> None:
    walk, of_running = (f"SELECT id FROM builds WHERE state = '{state}'" for state in ("failed", "running"))
    assert walks(service, [(walk, ()), (of_running, ())]) == [walk]


def test_of_many_workers_those_are_listed_that_were_seen_last(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_LISTED", 2)
    for worker in ("b", "c", "a"):
        service.clock.advance(1)
        service.register(a_profile(), worker=worker)
    assert [(worker.name, worker.profiles) for worker in service.call("list_workers").workers] == [
        ("a", ("cpu-v3",)),
        ("c", ("cpu-v3",)),
    ]
