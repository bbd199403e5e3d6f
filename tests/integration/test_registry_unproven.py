"""Pushed bundles that nobody proves: rejected after their time, with the reason; what a worker has at work is not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete

from aot.schema.digest import Digest
from aot.schema.state import BuildState, BundleState
from registry.db.models import BuildRow
from registry.services.retention import Retained, plan, retain
from tests.builders import a_manifest, a_profile, a_qualification, a_source, a_spec
from tests.kernel_builders import a_kernel_manifest
from tests.service import Service, a_service

DAY = 86400.0


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def push(service: Service, name: str = "mini") -> tuple[Digest, str]:
    spec = a_spec(name, source=a_source(f"source of {name}".encode()))
    reply = service.push(a_manifest(spec, qualification=a_qualification(start=None, agreements=())))
    assert reply.state is BundleState.PENDING and reply.build is not None
    return reply.bundle, reply.build


def later(service: Service, *, days: float) -> Retained:
    service.clock.advance(days * DAY)
    return retain(service.deps)


def test_a_pushed_bundle_that_nobody_proves_is_rejected_with_its_build(service: Service) -> None:
    bundle, build = push(service)
    kernels = service.push(a_kernel_manifest()).bundle
    assert later(service, days=29).rejected == ()
    assert set(later(service, days=2).rejected) == {bundle, kernels}
    view = service.call("get_bundle", digest=bundle)
    assert (view.state, view.withdrawn_reason) == (BundleState.REJECTED, "no worker has proven it within 30 days")
    ended = service.call("get_build", build=build)
    assert ended.state is BuildState.CANCELLED
    assert ended.error is not None and "push the bundle again" in ended.error.hint
    assert retain(service.deps).rejected == ()


def test_of_many_that_nobody_proves_a_pass_rejects_what_it_has_time_for(service: Service) -> None:
    pushed = {push(service, name)[0] for name in ("one", "two")}
    service.clock.advance(31 * DAY)
    first, second, *others = (retain(service.deps, seconds=0) for _ in range(6))
    assert [len(one.rejected) for one in (first, second, *others)] == [1, 1, 0, 0, 0, 0]
    assert first.unfinished and not others[-1].unfinished and {*first.rejected, *second.rejected} == pushed


def test_what_is_rejected_can_be_read_for_as_long_as_what_was_withdrawn(service: Service) -> None:
    bundle, _ = push(service)
    later(service, days=31)
    assert later(service, days=29).bundles == ()
    assert service.call("get_bundle", digest=bundle).state is BundleState.REJECTED
    assert later(service, days=2).bundles == (bundle,)


def test_a_bundle_that_a_worker_proves_now_is_left_alone(service: Service) -> None:
    bundle, build = push(service)
    service.clock.advance(31 * DAY)
    service.register(a_profile())
    service.claim("cpu-v3", build=build)
    assert retain(service.deps).rejected == ()
    assert service.call("get_bundle", digest=bundle).state is BundleState.PENDING


def test_a_bundle_that_is_pushed_again_waits_from_then_on(service: Service) -> None:
    bundle, _ = push(service)
    later(service, days=31)
    assert push(service)[0] == bundle
    assert later(service, days=29).rejected == ()
    assert service.call("get_bundle", digest=bundle).state is BundleState.PENDING
    assert later(service, days=2).rejected == (bundle,)


def test_a_pending_bundle_without_a_build_goes_by_its_own_age(service: Service) -> None:
    bundle, build = push(service)
    with service.deps.sessions.transaction() as session:
        session.execute(delete(BuildRow).where(BuildRow.id == build))
    assert later(service, days=29).rejected == ()
    assert later(service, days=2).rejected == (bundle,)


def test_the_time_is_a_setting(tmp_path) -> None:
    with a_service(tmp_path, AOT_KEEP_PENDING_SECONDS="3600") as service:
        service.register(a_profile())
        bundle, _ = push(service)
        service.clock.advance(3601)
        assert retain(service.deps).rejected == (bundle,)


def test_a_dry_run_names_them_and_changes_nothing(service: Service) -> None:
    bundle, build = push(service)
    service.clock.advance(31 * DAY)
    planned = plan(service.deps)
    assert planned.rejected == (bundle,)
    assert service.call("get_build", build=build).state is BuildState.QUEUED
    assert retain(service.deps) == planned


def test_of_several_sweepers_one_rejects_each(service: Service) -> None:
    pushed = {push(service, f"model-{number}")[0] for number in range(6)}
    service.clock.advance(31 * DAY)
    with ThreadPoolExecutor(4) as pool:
        done = [one.rejected for one in pool.map(lambda _: retain(service.deps), range(4))]
    assert sorted(digest for part in done for digest in part) == sorted(pushed)
