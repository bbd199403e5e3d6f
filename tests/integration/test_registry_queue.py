"""The queue over HTTP: classes, turns of namespaces, limits, tickets, another try, and the reasons that are told."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select, text

from aot.errors import (
    BuildFinished,
    BuildNotFound,
    InvalidConfig,
    InvalidInput,
    QueueUnavailable,
    StorageUnavailable,
)
from aot.schema.names import Name, Namespace
from aot.schema.state import BuildState
from aot.schema.wire.builds import CancelRequest, FailRequest, ProgressRequest, ReleaseRequest, RetryRequest, Ticket
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.db.builds import shorten_leases
from registry.db.models import BuildRow
from registry.db.queue import make_ready
from registry.services.sweep import explain_waiting, resend_tickets
from registry.services.turns import BULK_WAITS, RunningLimits
from registry.settings import Settings
from tests.builders import a_manifest, a_profile, a_source, a_spec
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def submit(service: Service, name: str, *, namespace: str = "default", priority: int = 0) -> str:
    service.clock.advance(0.01)
    return service.submit(a_spec(name, namespace=namespace), priority=priority).build.id


def claim_all(service: Service, *, finish: bool = True) -> list[str]:
    """The names of the models in the order in which one worker gets them."""
    names = []
    while (claim := service.ask("cpu-v3").claim) is not None:
        names.append(str(claim.spec.name))
        service.clock.advance(1)
        if finish:
            fail(service, claim)
    return names


def fail(service: Service, claim) -> None:
    error = ErrorBody(code="backend-failed", message="the compiler crashed")
    service.call("fail", FailRequest(error=error), token=claim.token, build=claim.build)


def test_one_namespace_with_many_builds_does_not_keep_the_others_waiting(service: Service) -> None:
    for number in range(4):
        submit(service, f"many{number}", namespace="busy")
    submit(service, "one", namespace="quiet")
    submit(service, "two", namespace="quiet")
    assert claim_all(service) == ["many0", "one", "many1", "two", "many2", "many3"]


def test_who_runs_fewer_builds_gets_the_next_worker(service: Service) -> None:
    for number in range(3):
        submit(service, f"many{number}", namespace="busy")
    first, second = service.claim("cpu-v3"), service.claim("cpu-v3")
    submit(service, "one", namespace="quiet")
    submit(service, "two", namespace="quiet")
    names = [first.spec.name, second.spec.name, *claim_all(service, finish=False)]
    assert names == ["many0", "many1", "one", "two", "many2"]


def test_bulk_builds_wait_for_the_interactive_ones_of_all_namespaces_an_hour_at_most(service: Service) -> None:
    submit(service, "bulk", namespace="a", priority=-10)
    submit(service, "asked-for", namespace="b")
    submit(service, "urgent", namespace="b", priority=5)
    assert claim_all(service) == ["urgent", "asked-for", "bulk"]
    submit(service, "bulk2", namespace="a", priority=-10)
    service.clock.advance(BULK_WAITS.total_seconds())
    submit(service, "new", namespace="b")
    assert claim_all(service) == ["bulk2", "new"], "who has waited an hour is in the class of the others"


def test_a_namespace_runs_no_more_builds_than_it_may_and_says_so(tmp_path: Path) -> None:
    with a_service(tmp_path, AOT_NAMESPACE_BUILDS="*=2,free=9") as service:
        service.register(a_profile())
        builds = [submit(service, f"m{number}") for number in range(4)]
        other = submit(service, "other", namespace="free")
        held = [service.claim("cpu-v3") for _ in range(3)]
        assert {claim.build for claim in held} == {*builds[:2], other}
        reason = "namespace default runs 2 builds, as many as it may (2)"
        assert service.ask("cpu-v3").waiting == reason
        assert service.ask("cpu-v3", build=builds[3]).claim is None, "not for a build that is asked for by name either"
        assert service.call("get_build", build=builds[2]).waiting == reason
        listed = service.call("list_builds", query={"state": "queued"}).builds
        assert {view.waiting for view in listed} == {reason}
        fail(service, next(claim for claim in held if claim.build == builds[0]))
        assert service.claim("cpu-v3").build == builds[2]


@pytest.mark.parametrize("said", ["8", "*=many", "a=-1", "a=1,a=2", "No Name=1", "=3"])
def test_limits_that_cannot_be_read_are_named(said: str) -> None:
    with pytest.raises(InvalidConfig, match="AOT_NAMESPACE_BUILDS"):
        Settings.from_environ({"AOT_NAMESPACE_BUILDS": said})


def test_limits_are_read() -> None:
    settings = Settings.from_environ({"AOT_NAMESPACE_BUILDS": " *=8, research = 2 "})
    assert settings.running_limits == RunningLimits(8, {Namespace("research"): 2})
    assert Settings.from_environ({}).running_limits == RunningLimits()


def test_a_lost_queue_costs_one_ticket_an_idle_worker_not_one_a_build(service: Service) -> None:
    builds = [submit(service, f"m{number}") for number in range(6)]
    service.register(a_profile(), worker="worker-2")
    service.queue.take()
    service.clock.advance(service.deps.settings.resend_after.total_seconds())
    for worker in ("worker-1", "worker-2"):
        service.register(a_profile(), worker=worker)
    assert service.sweep().resent == tuple(builds[:2])
    service.claim("cpu-v3")
    service.claim("cpu-v3", worker="worker-2")
    assert service.sweep().resent == (), "both have something to do"


def test_a_broker_that_hangs_keeps_a_pass_no_longer_than_its_time(service: Service, monkeypatch) -> None:
    for number in range(4):
        submit(service, f"m{number}")
    service.clock.advance(service.deps.settings.resend_after.total_seconds())
    for number in range(4):
        service.register(a_profile(), worker=f"worker-{number}")
    now, tried = [0.0], []

    def hang(queue: str, ticket: Ticket) -> None:
        tried.append(ticket.build)
        now[0] += 9.0
        raise QueueUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr("registry.services.sweep.time", SimpleNamespace(monotonic=lambda: now[0]))
        patched.setattr(service.queue, "send", hang)
        resend_tickets(service.deps)
    assert len(tried) == 2
    service.clock.advance(service.deps.settings.resend_after.total_seconds())
    for number in range(4):
        service.register(a_profile(), worker=f"worker-{number}")
    assert len(service.sweep().resent) == 4, "all are due again"


def test_every_waiting_build_is_explained_though_a_pass_looks_at_few(service: Service, monkeypatch) -> None:
    monkeypatch.setattr("registry.services.sweep.MOST_EXPLAINED", 2)
    builds = [submit(service, f"m{number}") for number in range(5)]
    service.clock.advance(3600)
    assert [explain_waiting(service.deps) for _ in range(4)] == [2, 2, 1, 0]
    waits = {service.call("get_build", build=build).waiting for build in builds}
    assert waits == {"no live worker of the profile cpu-v3"}
    service.register(a_profile())
    assert {service.call("get_build", build=build).waiting for build in builds} == {""}, "said at once"
    assert claim_all(service) == [f"m{number}" for number in range(5)]


def test_many_builds_that_cannot_be_built_do_not_hide_one_that_can(service: Service, monkeypatch) -> None:
    monkeypatch.setattr("registry.services.candidates.HELD_UP_LOOKED_AT", 2)
    for number in range(5):
        service.submit(a_spec(f"odd{number}", source=a_source(requirements=("x==1",))), priority=9)
    submit(service, "plain")
    assert claim_all(service) == ["plain"]


def test_the_log_tells_why_every_attempt_ended(service: Service) -> None:
    build = submit(service, "unlucky")
    claim = service.claim("cpu-v3")
    service.call("report_progress", ProgressRequest(lines=("compiling",)), token=claim.token, build=build)
    service.call("release", ReleaseRequest(reason="its disk is full"), token=claim.token, build=build)
    service.clock.advance(60)
    service.claim("cpu-v3")
    service.clock.advance(service.deps.settings.lease.total_seconds())
    service.sweep()
    lines = [line.text for line in service.call("get_build_log", build=build).lines]
    assert lines == [
        "compiling",
        "attempt 1: worker-1 gave it back: its disk is full",
        "attempt 2: the lease of worker-1 ran out at attempt 2",
    ]


def test_a_failed_build_is_tried_again_as_a_new_one_that_says_of_which(service: Service) -> None:
    service.submit(a_spec("shaky"), priority=7, tags=("prod",))
    first = service.claim("cpu-v3")
    fail(service, first)
    service.queue.take()
    reply = service.call("retry", RetryRequest(reason="the driver is mended"), build=first.build)
    assert (reply.created, reply.build.state, reply.build.id != first.build) == (True, BuildState.QUEUED, True)
    account = f"tried again (the driver is mended); build {first.build} ended failed: the compiler crashed"
    assert reply.build.waiting == account
    assert [ticket.build for _, ticket in service.queue.take()] == [reply.build.id]
    again = service.call("retry", RetryRequest(), build=first.build)
    assert (again.created, again.build.id) == (False, reply.build.id), "one live build a key"
    service.publish(service.claim("cpu-v3"))
    assert service.call("get_build", build=first.build).state is BuildState.FAILED
    assert [line.text for line in service.call("get_build_log", build=reply.build.id).lines] == [account]
    assert service.call("resolve", namespace="default", name="shaky", target="prod").bundles
    with pytest.raises(BuildFinished):
        service.call("retry", RetryRequest(), build=reply.build.id)


def test_a_cancelled_build_can_be_tried_again_and_a_live_one_is_its_own_answer(service: Service) -> None:
    build = submit(service, "on-and-off")
    live = service.call("retry", RetryRequest(), build=build)
    assert (live.created, live.build.id) == (False, build)
    service.call("cancel", CancelRequest(), build=build)
    assert service.call("retry", RetryRequest(), build=build).created


def test_a_retry_is_for_those_who_may_submit_and_not_for_proofs(service: Service) -> None:
    build = submit(service, "mine")
    service.call("cancel", CancelRequest(), build=build)
    stranger = service.token(Scope.SUBMIT, namespaces=("theirs",))
    for place in (build, "unknown"):
        with pytest.raises(BuildNotFound):
            service.call("retry", RetryRequest(), token=stranger, build=place)
    proof = service.push(a_manifest(a_spec("pushed"))).build
    with pytest.raises(InvalidInput, match="push"):
        service.call("retry", RetryRequest(), build=proof)


def test_dead_builds_are_listed_with_why_they_died(tmp_path: Path) -> None:
    with a_service(tmp_path, AOT_MAX_ATTEMPTS="1") as service:
        service.register(a_profile())
        dead = submit(service, "poison")
        submit(service, "sound")
        service.claim("cpu-v3", build=dead)
        service.clock.advance(service.deps.settings.lease.total_seconds())
        service.sweep()
        (view,) = service.call("list_builds", query={"state": "failed"}).builds
        assert (view.id, view.attempt, view.name) == (dead, 1, Name("poison"))
        assert view.error.message == "the lease ran out 1 times, the last at attempt 1 on worker-1"


def test_a_step_of_the_sweeper_that_fails_keeps_no_other_from_its_turn(service: Service, monkeypatch) -> None:
    service.published(a_spec("recorded"))
    service.token(Scope.READ, seconds=5)
    submit(service, "held")
    service.claim("cpu-v3")
    with service.deps.sessions.transaction() as session:
        session.execute(text("UPDATE bundles SET recorded_at = NULL"))
    service.clock.advance(2 * 86400)
    service.register(a_profile())

    def away(*_: object) -> None:
        raise StorageUnavailable("could not write the record")

    with monkeypatch.context() as broken:
        broken.setattr(type(service.deps.records), "put", away)
        with pytest.raises(StorageUnavailable, match="record"):
            service.sweep()
    assert service.call("list_builds", query={"state": "queued"}).builds[0].name == "held", "its lease has run out"
    swept = service.sweep()
    assert (swept.tokens, swept.recorded, swept.expired) == (0, 1, ()), "the rest was done in the pass before"


@pytest.mark.embedded("turns SQLite's limit down, which PostgreSQL has not")
def test_more_builds_than_a_statement_takes_parameters(service: Service) -> None:
    builds = [submit(service, f"many{number}") for number in range(20)]
    reason = "no live worker"
    with service.deps.sessions.transaction() as session:
        session.connection().connection.driver_connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 10)
        session.execute(text("UPDATE builds SET waiting = :reason"), {"reason": reason})
        make_ready(Name("cpu-v3"), unless=(reason,), session=session)
        assert session.scalar(text("SELECT count(*) FROM builds WHERE waiting = ''")) == len(builds)
        now = service.clock()
        session.execute(
            text("UPDATE builds SET state = 'running', lease_expires_at = :at"), {"at": now + timedelta(days=1)}
        )
        shorten_leases(session, over=now, to=now)
        over = session.scalars(select(BuildRow).where(BuildRow.lease_expires_at == now)).all()
        assert len(over) == len(builds)
        session.rollback()
