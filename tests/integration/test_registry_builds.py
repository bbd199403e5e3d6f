"""Builds as submitters see them: one build a key, what is refused, what is listed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from aot.errors import (
    BlobMissing,
    BuildFinished,
    BuildNotFound,
    InvalidInput,
    InvalidSpec,
    MalformedDocument,
    ProfileNotFound,
    SizeMismatch,
)
from aot.keys import factors_of, key_of
from aot.schema.recipe import Purpose, Recipe, Route, command_recipe
from aot.schema.spec import Blob, Commit
from aot.schema.state import BuildState
from aot.schema.wire.builds import CancelRequest, ProgressRequest, SubmitRequest
from aot.schema.wire.workers import Scope
from tests.builders import a_blob, a_frozen_spec, a_profile, a_source, a_spec, a_toolchain, altered
from tests.route_builders import a_capture_source
from tests.service import Service, a_service


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def test_eight_clients_that_submit_the_same_spec_end_in_one_build(service: Service) -> None:
    service.upload(a_spec().blobs)
    request = SubmitRequest(spec=a_spec())
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: service.call("submit", request), range(8)))
    assert len({reply.build.id for reply in replies}) == 1
    assert sorted(reply.created for reply in replies) == [False] * 7 + [True]
    assert len(service.queue.take()) == 1
    assert len(service.call("list_builds").builds) == 1


def test_the_key_is_that_of_spec_and_profile(service: Service) -> None:
    build = service.submit(a_spec()).build
    assert build.build_key == key_of(factors_of(a_spec(), a_profile()))


@pytest.mark.parametrize(
    "other",
    [
        a_spec(namespace="theirs"),
        a_spec("maxi"),
        a_spec(recipe=Recipe(fullgraph=False)),
        a_spec(source=a_source(b"other tree")),
    ],
    ids=["namespace", "name", "recipe", "source"],
)
def test_what_differs_is_another_build(service: Service, other) -> None:
    assert service.submit(a_spec()).created
    assert service.submit(other).created


def test_a_later_submission_adds_its_tags_and_a_higher_priority_to_the_live_build(service: Service) -> None:
    first = service.submit(a_spec(), tags=("a",), priority=1)
    again = service.submit(a_spec(), tags=("b", "a"), priority=5)
    assert (again.created, again.build.id, again.build.tags) == (False, first.build.id, ("a", "b"))
    service.submit(a_spec("later"), priority=4)
    assert service.claim("cpu-v3").build == first.build.id


def test_a_spec_whose_bundle_is_live_is_answered_by_its_build_and_moves_the_tags(service: Service) -> None:
    reply = service.published(a_spec())
    service.queue.take()
    again = service.submit(a_spec(), tags=("v2",))
    assert (again.created, again.build.id, again.build.bundle) == (False, reply.build, reply.bundle)
    assert service.queue.take() == []
    [bundle] = service.call("resolve", namespace="default", name="mini", target="v2").bundles
    assert bundle.digest == reply.bundle


@pytest.mark.parametrize("ending", ["cancel", "withdraw"])
def test_a_key_without_live_build_or_bundle_is_built_again(service: Service, ending: str) -> None:
    if ending == "cancel":
        first = service.submit(a_spec()).build.id
        service.call("cancel", CancelRequest(), build=first)
    else:
        from aot.schema.wire.bundles import WithdrawRequest

        reply = service.published(a_spec())
        first = reply.build
        service.call("withdraw", WithdrawRequest(reason="wrong"), digest=reply.bundle)
    again = service.submit(a_spec())
    assert again.created and again.build.id != first


def test_submit_refuses_a_source_that_was_not_uploaded(service: Service) -> None:
    with pytest.raises(BlobMissing) as refusal:
        service.call("submit", SubmitRequest(spec=a_spec()))
    assert refusal.value.details["digests"] == [blob.digest for blob in a_spec().blobs]
    assert service.call("list_builds").builds == ()


def test_a_blob_counts_only_for_the_namespace_that_has_uploaded_it(service: Service) -> None:
    service.submit(a_spec())
    with pytest.raises(BlobMissing):
        service.call("submit", SubmitRequest(spec=a_spec(namespace="theirs")))
    assert service.upload(a_spec().blobs, namespace="theirs") == [blob.digest for blob in a_spec().blobs]


def test_uploads_are_asked_for_once(service: Service) -> None:
    service.submit(a_spec())
    assert service.upload(a_spec().blobs) == []
    assert service.upload([*a_spec().blobs, a_blob(b"more")]) == [a_blob(b"more").digest]


def test_a_blob_that_the_store_has_lost_is_asked_for_again(service: Service) -> None:
    service.submit(a_spec())
    [blob] = a_spec().blobs
    service.deps.store.delete(blob.digest)
    assert service.upload([blob]) == [blob.digest]


def test_submit_refuses_a_blob_of_another_size(service: Service) -> None:
    service.upload(a_spec().blobs)
    [blob] = a_spec().blobs
    wrong = a_spec(source=altered(a_source(), tree=Blob(digest=blob.digest, size_bytes=3)))
    with pytest.raises(SizeMismatch):
        service.call("submit", SubmitRequest(spec=wrong))


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_uploads_of_impossible_sizes_are_refused(service: Service, size: int) -> None:
    with pytest.raises(InvalidInput):
        service.upload([Blob(digest=a_blob().digest, size_bytes=size)])


def test_an_unknown_profile_is_refused_naming_the_known_ones(service: Service) -> None:
    with pytest.raises(ProfileNotFound, match="known are cpu-v3") as refusal:
        service.submit(a_spec(profile="h100"))
    assert refusal.value.details == {"profiles": ["cpu-v3"]}


@pytest.mark.parametrize(
    "spec",
    [
        a_spec(source=a_source(entry="no function")),
        a_spec(source=a_source(entry="../evil:make")),
        a_spec(source=a_source(requirements=("transformers>=4",))),
        altered(a_frozen_spec(), weights=()),
        a_spec(recipe=Recipe(purpose=Purpose.TRAINING)),
        a_spec(recipe=Recipe(routes=(Route.FUNCTION, Route.PACKAGE))),
        a_spec(source=a_capture_source(), recipe=command_recipe({})),  # entries that somebody else has captured
        a_spec(recipe=Recipe(options={"trace.debug_dir": "traces"})),
        a_spec(recipe=Recipe(environment={"LD_PRELOAD": "x.so"})),
        altered(a_spec(), commit=Commit(revision="main\x1b[31m")),
    ],
    ids=["entry", "path", "range", "no weights", "training", "route", "entries", "option", "variable", "commit"],
)
def test_specs_that_no_worker_could_build_are_refused(service: Service, spec) -> None:
    with pytest.raises(InvalidSpec):
        service.submit(spec)
    assert service.call("list_builds").builds == ()
    assert service.queue.take() == []


@pytest.mark.parametrize("priority", [1001, -1001, 1 << 70])
def test_priorities_have_bounds(service: Service, priority: int) -> None:
    with pytest.raises((InvalidInput, MalformedDocument)):
        service.submit(a_spec(), priority=priority)


def test_a_broken_queue_does_not_lose_a_build(service: Service) -> None:
    service.queue.unavailable = True
    build = service.submit(a_spec()).build
    service.queue.unavailable = False
    service.clock.advance(service.deps.settings.resend_after.total_seconds())
    service.register(a_profile())
    assert service.sweep().resent == (build.id,)
    assert [ticket.build for _, ticket in service.queue.take()] == [build.id]


def test_a_build_says_that_no_worker_of_its_profile_lives(service: Service) -> None:
    service.clock.advance(service.deps.settings.worker_lives.total_seconds() + 1)
    assert service.submit(a_spec()).build.waiting == "no live worker of the profile cpu-v3"


def test_builds_are_listed_newest_first_page_by_page(service: Service) -> None:
    ids = []
    for name in ("one", "two", "three"):
        service.clock.advance(1)
        ids.append(service.submit(a_spec(name)).build.id)
    first = service.call("list_builds", query={"limit": 2})
    second = service.call("list_builds", query={"limit": 2, "after": first.next})
    assert [build.id for build in (*first.builds, *second.builds)] == ids[::-1]
    assert second.next is None


def test_builds_are_listed_by_what_is_asked(service: Service) -> None:
    service.submit(a_spec("one"))
    theirs = service.submit(a_spec("two", namespace="theirs")).build
    service.call("cancel", CancelRequest(), build=theirs.id)

    def names(**query: str) -> list[str]:
        return [build.name for build in service.call("list_builds", query=query).builds]

    assert names(namespace="theirs") == ["two"]
    assert names(name="one") == ["one"]
    assert names(state="cancelled") == ["two"]
    assert names(profile="cpu-v3", state="queued") == ["one"]
    limited = service.token(Scope.READ, namespaces=("theirs",))
    assert [build.name for build in service.call("list_builds", token=limited).builds] == ["two"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"limit": "x"}, {"state": "done"}, {"name": "A B"}])
def test_questions_that_make_no_sense_are_refused(service: Service, query: dict) -> None:
    with pytest.raises(InvalidInput):
        service.call("list_builds", query=query)


def test_an_unknown_build_is_not_found(service: Service) -> None:
    for build in ("nope", "\0", "x" * 3000):
        with pytest.raises(BuildNotFound):
            service.call("get_build", build=build)


def test_a_cancelled_build_stops_its_worker_and_stays_cancelled(service: Service) -> None:
    service.submit(a_spec())
    claim = service.claim("cpu-v3")
    view = service.call("cancel", CancelRequest(reason="wrong weights"), build=claim.build)
    assert (view.state, view.error.code) == (BuildState.CANCELLED, "compile-stopped")
    again = service.call("cancel", CancelRequest(reason="other"), build=claim.build)
    assert again.error == view.error
    reply = service.call("renew", token=claim.token, build=claim.build)
    assert reply.stop == "cancelled by test: wrong weights"
    reply = service.call("report_progress", ProgressRequest(lines=("late",)), token=claim.token, build=claim.build)
    assert reply.stop is not None
    with pytest.raises(BuildFinished):
        service.publish(claim)


def test_a_finished_build_cannot_be_cancelled(service: Service) -> None:
    reply = service.published(a_spec())
    with pytest.raises(BuildFinished) as refusal:
        service.call("cancel", CancelRequest(), build=reply.build)
    assert refusal.value.details == {"state": "published", "bundle": reply.bundle}


def test_a_profile_that_changes_keeps_its_queued_builds_waiting_and_says_what_changed(
    service: Service,
) -> None:
    build = service.submit(a_spec()).build
    service.register(a_profile(toolchain=a_toolchain(compiler="g++ 14.1.0")))
    reply = service.ask("cpu-v3")
    assert reply.claim is None and 'compiler was "g++ 12.2.0", is "g++ 14.1.0"' in reply.waiting
    assert "has changed since" in service.call("get_build", build=build.id).waiting
    assert service.submit(a_spec()).created
