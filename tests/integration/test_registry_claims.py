"""Claims and leases: who gets which build, for how long, and what time does to it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aot.errors import BuildFinished, InvalidInput, LeaseLost, QualificationFailed
from aot.schema.names import Name
from aot.schema.report import Phase
from aot.schema.state import BuildState
from aot.schema.wire.builds import SHUTTING_DOWN, ClaimRequest, FailRequest, ProgressRequest, ReleaseRequest
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.services.claims import QUICK_ATTEMPTS
from tests.builders import a_profile, a_report, a_source, a_spec
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def lease(service: Service) -> float:
    return service.deps.settings.lease.total_seconds()


def failure(code: str = "backend-failed") -> FailRequest:
    return FailRequest(error=ErrorBody(code=code, message="the compiler crashed"), report=a_report())


def test_of_eight_workers_that_claim_one_build_one_gets_it(service: Service) -> None:
    build = service.submit(a_spec()).build
    for number in range(8):
        service.register(a_profile(), worker=f"w{number}")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: service.ask("cpu-v3", worker=f"w{n}", build=build.id), range(8)))
    winners = [reply.claim for reply in replies if reply.claim]
    assert [(claim.build, claim.attempt) for claim in winners] == [(build.id, 1)]
    assert all(reply.waiting for reply in replies if reply.claim is None)


def test_a_claim_brings_everything_that_the_worker_needs(service: Service) -> None:
    build = service.submit(a_spec()).build
    claim = service.claim("cpu-v3")
    assert claim.spec == a_spec()
    assert claim.profile == a_profile()
    assert claim.build_key == build.build_key
    assert [link.digest for link in claim.links] == [blob.digest for blob in a_spec().blobs]
    assert (claim.lease_expires_at - service.clock()).total_seconds() == claim.lease_seconds == lease(service)
    view = service.call("get_build", build=build.id)
    assert (view.state, view.attempt, view.started_at) == (BuildState.RUNNING, 1, service.clock())


def test_the_build_of_the_ticket_comes_first_then_priority_then_age(service: Service) -> None:
    order = []
    for name, priority in (("old", 0), ("urgent", 9), ("ticket", -5), ("new", 0)):
        service.clock.advance(1)
        order.append(service.submit(a_spec(name), priority=priority).build.id)
    old, urgent, ticket, new = order
    claimed = [service.claim("cpu-v3", build=ticket).build] + [service.claim("cpu-v3").build for _ in range(3)]
    assert claimed == [ticket, urgent, old, new]
    assert service.ask("cpu-v3").waiting == "no build waits for cpu-v3"


def test_a_ticket_of_a_build_that_is_taken_or_unknown_leads_to_the_best_other(service: Service) -> None:
    taken = service.submit(a_spec("taken")).build.id
    service.claim("cpu-v3", build=taken)
    other = service.submit(a_spec("other")).build.id
    assert service.claim("cpu-v3", build=taken).build == other
    assert service.ask("cpu-v3", build="unknown").claim is None


def test_a_worker_gets_builds_of_its_own_profiles_only(service: Service) -> None:
    service.register(a_profile("cpu-v2", capability="cpu:x86-64-v2"), worker="other")
    low = service.submit(a_spec(profile="cpu-v2")).build.id
    assert service.ask("cpu-v3", build=low).claim is None
    service.register(a_profile(), a_profile("cpu-v2", capability="cpu:x86-64-v2"))
    claim = service.claim("cpu-v3", "cpu-v2")
    assert (claim.build, claim.profile.name) == (low, "cpu-v2")


@pytest.mark.parametrize("profiles", [("h100",), (), ("cpu-v3", "h100")])
def test_a_worker_claims_for_profiles_that_it_has_registered(service: Service, profiles: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="registered are cpu-v3"):
        service.ask(*profiles)


def test_a_worker_for_one_namespace_gets_no_build_of_another(service: Service) -> None:
    theirs = service.submit(a_spec(namespace="theirs")).build.id
    limited = service.token(Scope.CLAIM, namespaces=("ours",))
    for build in (None, theirs):
        request = ClaimRequest(worker=Name("worker-1"), profiles=(Name("cpu-v3"),), build=build)
        assert service.call("claim", request, token=limited).claim is None


def test_a_requirement_that_the_worker_does_not_meet_keeps_the_build_queued_with_the_reason(
    service: Service,
) -> None:
    spec = a_spec(source=a_source(requirements=("Some.Package==2.0",)))
    build = service.submit(spec).build
    wanted = "it requires Some.Package==2.0, the workers have none"
    assert build.waiting == wanted
    assert wanted in service.ask("cpu-v3").waiting
    service.register(a_profile(packages={"some-package": "1.9"}))
    service.ask("cpu-v3", build=build.id)
    view = service.call("get_build", build=build.id)
    assert (view.state, view.waiting) == (
        BuildState.QUEUED,
        "it requires Some.Package==2.0, the workers have 1.9",
    )
    service.register(a_profile(packages={"some_package": "2.0"}))
    assert service.claim("cpu-v3").build == build.id


def test_a_build_that_cannot_be_built_here_does_not_hold_up_the_next(service: Service) -> None:
    service.submit(a_spec("odd", source=a_source(requirements=("x==1",))), priority=9)
    other = service.submit(a_spec("plain")).build.id
    assert service.claim("cpu-v3").build == other


def test_a_lease_that_is_renewed_does_not_run_out(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    for _ in range(5):
        service.clock.advance(0.9 * lease(service))
        reply = service.call("renew", token=claim.token, build=claim.build)
        assert (reply.lease_expires_at - service.clock()).total_seconds() == lease(service)
        assert service.sweep().expired == ()
    assert service.publish(claim).bundle


def test_a_lease_of_before_the_clock_was_set_back_lasts_no_longer_than_any_other(service: Service) -> None:
    first = service.submit(a_spec()).build
    claim = service.claim("cpu-v3")
    service.clock.advance(-3600)
    assert service.sweep().expired == (), "its worker may live"
    reply = service.call("renew", build=claim.build, token=claim.token)
    assert (reply.lease_expires_at - service.clock()).total_seconds() == lease(service)
    service.clock.advance(-3600)
    service.sweep()
    service.clock.advance(lease(service) + 1)
    assert service.sweep().expired == (first.id,), "nobody waits for an hour for a worker that died meanwhile"


def test_a_lease_that_runs_out_gives_the_build_to_another_attempt(service: Service) -> None:
    service.submit(a_spec())
    first = service.claim("cpu-v3")
    service.queue.take()
    service.clock.advance(lease(service))
    service.register(a_profile())
    swept = service.sweep()
    assert (swept.expired, swept.resent) == ((first.build,), (first.build,))
    assert [ticket.build for _, ticket in service.queue.take()] == [first.build]
    view = service.call("get_build", build=first.build)
    assert (view.state, view.waiting) == (BuildState.QUEUED, "the lease of worker-1 ran out at attempt 1")
    second = service.claim("cpu-v3")
    assert (second.build, second.attempt) == (first.build, 2)
    for call, body in (
        ("renew", None),
        ("report_progress", ProgressRequest(step="late")),
        ("fail", failure()),
        ("release", ReleaseRequest(reason="late")),
    ):
        with pytest.raises(LeaseLost):
            service.call(call, body, token=first.token, build=first.build)
    with pytest.raises(LeaseLost):
        service.publish(first)
    assert service.publish(second).bundle


def test_a_publish_after_the_lease_ran_out_is_refused_though_nobody_took_the_build(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    service.upload((), token=claim.token)
    service.clock.advance(lease(service))
    with pytest.raises(LeaseLost):
        service.publish(claim)
    assert service.call("search").bundles == ()


def test_a_build_that_loses_its_lease_too_often_fails_and_says_how_often(tmp_path) -> None:
    with a_service(tmp_path, AOT_MAX_ATTEMPTS="2") as service:
        service.register(a_profile())
        build = service.submit(a_spec()).build.id
        for _ in range(2):
            service.claim("cpu-v3", build=build)
            service.clock.advance(lease(service))
            swept = service.sweep()
        assert swept.exhausted == (build,)
        view = service.call("get_build", build=build)
        assert view.state is BuildState.FAILED
        assert view.error.message == "the lease ran out 2 times, the last at attempt 2 on worker-1"
        assert view.error.details == {"attempts": 2, "phase": None}
        assert service.submit(a_spec()).created


def test_a_released_build_waits_for_others_first_and_costs_no_attempt(service: Service) -> None:
    service.submit(a_spec())
    service.register(a_profile(), worker="worker-2")
    claim = service.claim("cpu-v3")
    for _ in range(2):  # a reply may get lost
        view = service.call("release", ReleaseRequest(reason="shutting down"), token=claim.token, build=claim.build)
        assert (view.state, view.waiting) == (BuildState.QUEUED, "worker-1 gave it back: shutting down")
    assert "gave it back just now" in service.ask("cpu-v3").waiting
    assert service.sweep().resent == (claim.build,)
    assert service.claim("cpu-v3", worker="worker-2").attempt == 2


def test_a_released_build_comes_back_to_its_only_worker_after_a_while(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    service.call("release", ReleaseRequest(reason="restart"), token=claim.token, build=claim.build)
    service.clock.advance(60)
    assert service.claim("cpu-v3").build == claim.build


def give_back(service: Service, build: str, *, reason: str = "no", **account: Any) -> None:
    """The next attempt at it, by whoever was not handed it last."""
    claim = service.claim("cpu-v3", build=build)
    for _ in range(2):  # a reply may get lost
        service.call("release", ReleaseRequest(reason=reason, **account), token=claim.token, build=build)
    service.clock.advance(60)
    service.register(a_profile())


def test_host_faults_are_counted_apart_from_other_attempts_and_once_each(service: Service) -> None:
    build = service.submit(a_spec()).build.id
    give_back(service, build)
    give_back(service, build, host_fault=True)
    service.claim("cpu-v3", build=build)
    service.clock.advance(lease(service))
    service.sweep()
    service.register(a_profile())
    claim = service.claim("cpu-v3", build=build)
    assert (claim.attempt, claim.host_faults) == (4, 1)


def test_what_is_given_back_very_often_is_handed_out_less_and_less_soon(service: Service) -> None:
    build = service.submit(a_spec()).build.id
    for _ in range(QUICK_ATTEMPTS):
        give_back(service, build)
    give_back(service, build)
    assert f"given back after attempt {QUICK_ATTEMPTS + 1}" in service.ask("cpu-v3").waiting
    service.clock.advance(60)
    service.register(a_profile())
    assert service.claim("cpu-v3").attempt == QUICK_ATTEMPTS + 2


def test_workers_that_are_told_to_end_make_no_build_wait(service: Service) -> None:
    """A build of hours meets many rolling updates."""
    build = service.submit(a_spec()).build.id
    for _ in range(QUICK_ATTEMPTS + 5):
        give_back(service, build, reason=SHUTTING_DOWN)
    for _ in range(QUICK_ATTEMPTS):
        give_back(service, build)
    assert service.claim("cpu-v3", build=build).attempt == 2 * QUICK_ATTEMPTS + 6


def test_a_failed_build_keeps_error_and_report(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    for _ in range(2):  # a reply may get lost
        view = service.call("fail", failure("source-not-exportable"), token=claim.token, build=claim.build)
        assert (view.state, view.error.code, view.report) == (
            BuildState.FAILED,
            "source-not-exportable",
            a_report(),
        )
    with pytest.raises(BuildFinished):
        service.publish(claim)


def test_a_failed_proof_comes_back_as_its_own_class(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    error = ErrorBody.of(QualificationFailed("differs", hint="look", details={"max_error": 41.0}))
    view = service.call("fail", FailRequest(error=error), token=claim.token, build=claim.build)
    assert isinstance(view.error.to_error(), QualificationFailed)
    assert view.error.to_error().details == {"max_error": 41.0}


def test_progress_and_log_lines_can_be_followed(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    place = {"token": claim.token, "build": claim.build}
    service.call("report_progress", ProgressRequest(phase=Phase.EXPORTING, lines=("a", "b\0")), **place)
    request = ProgressRequest(phase=Phase.COMPILING, step="region 2 of 5", lines=("c",))
    service.call("report_progress", request, **place)
    view = service.call("get_build", build=claim.build)
    assert (view.phase, view.step) == (Phase.COMPILING, "region 2 of 5")
    lines = service.call("get_build_log", build=claim.build).lines
    assert [(line.sequence, line.text) for line in lines] == [(0, "a"), (1, "b\0"), (2, "c")]
    later = service.call("get_build_log", build=claim.build, query={"after": 1}).lines
    assert [line.text for line in later] == ["c"]
    service.call("report_progress", ProgressRequest(lines=("d",)), **place)
    assert service.call("get_build", build=claim.build).step == "region 2 of 5"
    service.call("report_progress", ProgressRequest(step="region 3 of 5"), **place)
    view = service.call("get_build", build=claim.build)
    assert (view.phase, view.step) == (Phase.COMPILING, "region 3 of 5")


def test_a_log_has_an_end(service: Service, monkeypatch) -> None:
    monkeypatch.setattr("registry.services.claims.LINES_A_BUILD", 3)
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    for _ in range(3):
        request = ProgressRequest(lines=("x" * 10_000, "y"))
        service.call("report_progress", request, token=claim.token, build=claim.build)
    texts = [line.text for line in service.call("get_build_log", build=claim.build).lines]
    assert texts == ["x" * 4000, "y", "[the log ends here: it may have 3 lines]"]


def test_tickets_are_sent_again_once_a_while_by_one_of_several_sweepers(service: Service) -> None:
    build = service.submit(a_spec()).build.id
    service.queue.take()
    assert service.sweep().resent == ()
    service.clock.advance(service.deps.settings.resend_after.total_seconds())
    service.register(a_profile())
    with ThreadPoolExecutor(4) as pool:
        swept = list(pool.map(lambda _: service.sweep().resent, range(4)))
    assert sorted(swept) == [(), (), (), (build,)]
    assert [ticket.build for _, ticket in service.queue.take()] == [build]


def test_a_ticket_of_before_the_clock_was_set_back_is_sent_again_at_once(service: Service) -> None:
    build = service.submit(a_spec()).build
    assert service.sweep().resent == ()
    service.clock.advance(-3600)
    assert service.sweep().resent == (build.id,), "it may be lost, and nobody waits for an hour to find out"
    assert service.sweep().resent == ()


def test_no_tickets_pile_up_while_no_worker_lives(service: Service) -> None:
    build = service.submit(a_spec()).build.id
    service.queue.take()
    service.clock.advance(3600)
    assert service.sweep().resent == ()
    assert service.call("get_build", build=build).waiting == "no live worker of the profile cpu-v3"
    service.register(a_profile())
    assert service.sweep().resent == (build,)
    assert service.call("get_build", build=build).waiting == ""


def test_expired_tokens_are_removed(service: Service) -> None:
    service.token(Scope.READ, seconds=5)
    service.clock.advance(2 * 86400)
    assert service.sweep().tokens == 1
