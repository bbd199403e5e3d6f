"""`run_build` against the real application: every way in which an attempt can end."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.bundle import read_bundle
from aot.errors import (
    AotError,
    BackendFailed,
    BlobNotFound,
    CompileOutOfMemory,
    DigestMismatch,
    Forbidden,
    InvalidSpec,
    LocalStorageFull,
    NotFound,
    QualificationFailed,
    RegistryUnreachable,
    SourceNotLoadable,
    TagMoved,
)
from aot.pipeline import publish_bundle
from aot.schema.guard import HostGuard
from aot.schema.names import Name, Reference
from aot.schema.report import Qualification
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.builds import SubmitReply
from tests import worker_stand
from tests.builders import a_manifest, a_profile, a_qualification, a_readable_artifact, altered, host_guards
from tests.fake_backend import Work
from tests.transport import client_of
from tests.worker_stand import Stand, fail_with, next_turn, of_link
from worker.run import MOST_HOST_FAULTS, Bench, Ended, run_build

stand = worker_stand.stand  # a fixture


def test_a_build_is_published_with_its_tags_and_leaves_no_scratch(stand: Stand) -> None:
    assert stand.run() is Ended.PUBLISHED
    view = stand.view()
    assert (view.state, view.attempt) == (BuildState.PUBLISHED, 1)
    (found,) = client_of(stand.service).resolve(Reference("default/mini:latest"))
    assert found.digest == view.bundle
    assert (stand.backend.works[0].source.tree is None, list(stand.bench.scratch.iterdir())) == (False, [])


def test_the_source_is_unpacked_before_the_compile(stand: Stand) -> None:
    def act(work: Work) -> None:
        assert work.source.tree is not None
        assert ((work.source.tree / "model.py").read_text(), work.source.entry) == ("def make(): ...\n", "model:make")

    assert stand.run(act) is Ended.PUBLISHED


@pytest.mark.parametrize(
    "error",
    [
        SourceNotLoadable("no such function", hint="check the entry"),
        BackendFailed("the compiler crashed", details={"region": "layers.0"}),
        CompileOutOfMemory("too much memory"),
        QualificationFailed("differs from eager", details={"differences": [1.5]}),
        InvalidSpec("a recipe that cannot be honoured"),
        DigestMismatch("other bytes"),
        Forbidden("not yours"),
        NotFound("nothing there"),
    ],
    ids=lambda error: error.code,
)
def test_an_error_ends_the_build_in_its_own_words(stand: Stand, error: AotError) -> None:
    assert stand.run(fail_with(error)) is Ended.FAILED
    view = stand.view()
    assert view.state is BuildState.FAILED and view.error is not None
    told = view.error.to_error()
    assert (type(told), told.message, told.hint, told.details) == (
        type(error),
        error.message,
        error.hint,
        error.details,
    )


@pytest.mark.parametrize("details", [{"log": "\ud800"}, {"log": "x" * (2 << 20)}], ids=["no UTF-8", "too long"])
def test_details_that_cannot_be_sent_do_not_hide_the_error(stand: Stand, details: dict[str, Any]) -> None:
    assert stand.run(fail_with(BackendFailed("the compiler crashed", details=details))) is Ended.FAILED
    error = stand.view().error
    assert error is not None
    assert (error.message, error.details) == ("the compiler crashed", {"left_out": "the details cannot be sent"})


def test_a_fault_of_the_worker_fails_the_build_and_not_the_worker(stand: Stand) -> None:
    assert stand.run(fail_with(ZeroDivisionError("oh"))) is Ended.FAILED
    error = stand.view().error
    assert error is not None and error.message == "a fault in the worker: ZeroDivisionError: oh"


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), MemoryError(), LocalStorageFull("the disk is full")],
    ids=["OSError", "MemoryError", "LocalStorageFull"],
)
def test_a_fault_of_the_host_gives_the_build_to_another_worker(stand: Stand, error: Exception) -> None:
    assert stand.run(fail_with(error)) is Ended.RELEASED
    view = stand.view()
    assert (view.state, view.error) == (BuildState.QUEUED, None)
    assert view.waiting.startswith("worker-1 gave it back: the worker's disk, memory or network failed")


@pytest.mark.parametrize("kind", [DigestMismatch, Forbidden, BlobNotFound], ids=lambda kind: kind.code)
def test_a_source_that_comes_damaged_or_is_refused_is_fetched_again_by_another_attempt(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, kind: type[AotError]
) -> None:
    def damaged(*_: Any, **__: Any) -> None:
        raise of_link(kind("wanted bytes of one digest, found another"))

    with monkeypatch.context() as broken:
        broken.setattr("worker.run.fetch_source", damaged)
        assert stand.run() is Ended.RELEASED
    assert "found another" in stand.view().waiting
    stand.service.clock.advance(61)
    stand.service.register(a_profile())
    assert stand.run() is Ended.PUBLISHED


@pytest.mark.parametrize("step", ["fetch_bases", "join_again"])
@pytest.mark.parametrize("kind", [DigestMismatch, Forbidden], ids=lambda kind: kind.code)
def test_what_a_union_is_joined_with_comes_damaged_and_is_fetched_again_by_another_attempt(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, step: str, kind: type[AotError]
) -> None:
    def raises(error: AotError) -> Callable[..., Any]:
        return lambda *_, **__: fail_with(error)(None)

    build = stand.build
    if step == "fetch_bases":  # before a pushed bundle is proven
        stand.run()
        pushed = a_manifest(altered(stand.spec, name=Name("pushed")), artifacts=(a_readable_artifact(),))
        build = stand.service.push(pushed).build
    monkeypatch.setattr(f"worker.run.{step}", raises(of_link(kind("wanted bytes of one digest, found another"))))
    monkeypatch.setattr("worker.run.publish_bundle", raises(TagMoved("the tag stands for another")))
    assert stand.run() is Ended.RELEASED
    view = stand.service.call("get_build", build=build)
    assert view.state is BuildState.QUEUED and "found another" in view.waiting


def test_a_union_that_is_joined_often_takes_the_disk_of_one(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, left, there = publish_bundle, [TagMoved("the tag stands for another")] * 4, []

    def moving(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return publish(*arguments, **options)

    def join(staged: Any, *_: Any, scratch: Path, **__: Any) -> Any:
        (scratch / "bundle").mkdir(parents=True)
        there.append([place.name for place in sorted(scratch.parent.glob("join-*"))])
        return staged

    monkeypatch.setattr("worker.run.publish_bundle", moving)
    monkeypatch.setattr("worker.run.join_again", join)
    assert stand.run() is Ended.PUBLISHED
    # The one that is made, and the one that it is made of.
    assert there == [["join-9"], ["join-8", "join-9"], ["join-7", "join-8"], ["join-6", "join-7"]]


def test_host_faults_without_end_fail_the_build(stand: Stand) -> None:
    ended = []
    for _ in range(MOST_HOST_FAULTS):
        ended.append(stand.run(fail_with(OSError(28, "No space left on device"))))
        next_turn(stand)
    assert ended == [Ended.RELEASED] * (MOST_HOST_FAULTS - 1) + [Ended.FAILED]
    assert stand.view().state is BuildState.FAILED


def test_only_they_count_and_no_attempt_that_ended_otherwise(stand: Stand) -> None:
    away = RegistryUnreachable("could not reach the store")
    for error in [away] * MOST_HOST_FAULTS + [OSError(28, "No space left on device")]:
        assert stand.run(fail_with(error)) is Ended.RELEASED
        next_turn(stand)
    assert stand.run() is Ended.PUBLISHED
    assert stand.view().attempt == MOST_HOST_FAULTS + 2


def test_a_cancelled_build_stops_within_seconds(stand: Stand) -> None:
    threading.Timer(0.3, stand.cancel).start()
    begun = time.monotonic()
    assert stand.run(Work.wait_until_stopped) is Ended.STOPPED
    assert time.monotonic() - begun < 5 + 0.3
    view = stand.view()
    assert (view.state, view.bundle) == (BuildState.CANCELLED, None)


def test_a_build_cancelled_just_before_publish_is_not_published(stand: Stand) -> None:
    assert stand.run(lambda work: stand.cancel()) is Ended.STOPPED
    assert (stand.view().state, stand.view().bundle) == (BuildState.CANCELLED, None)


def test_a_lost_lease_stops_the_work_and_leaves_the_build_to_its_new_holder(stand: Stand) -> None:
    def lose() -> None:
        stand.service.clock.advance(1000)
        stand.service.sweep()
        stand.service.register(a_profile(), worker="worker-2")
        stand.service.claim("cpu-v3", worker="worker-2", build=stand.build)

    losing = threading.Timer(0.3, lose)
    losing.start()
    assert stand.run(Work.wait_until_stopped) is Ended.STOPPED
    losing.join()  # the first worker may stop between the sweep and the second one's claim
    assert (stand.view().state, stand.view().attempt) == (BuildState.RUNNING, 2)


def test_a_lease_lost_during_the_last_step_does_not_publish(stand: Stand) -> None:
    def lose(work: Work) -> None:
        stand.service.clock.advance(1000)
        stand.service.sweep()

    assert stand.run(lose) is Ended.STOPPED
    assert (stand.view().state, stand.view().bundle) == (BuildState.QUEUED, None)


def test_a_shutdown_gives_the_build_back_at_once(stand: Stand) -> None:
    threading.Timer(0.3, stand.bench.stopping.set).start()
    begun = time.monotonic()
    assert stand.run(Work.wait_until_stopped) is Ended.RELEASED
    assert time.monotonic() - begun < 3
    view = stand.view()
    assert (view.state, view.waiting) == (
        BuildState.QUEUED,
        "worker-1 gave it back: the worker is shutting down",
    )


def test_a_child_that_the_shutdown_killed_first_is_no_failure_of_the_compiler(stand: Stand) -> None:
    def act(work: Work) -> None:
        stand.bench.stopping.set()
        raise BackendFailed("the child was ended by signal 15")

    assert stand.run(act) is Ended.RELEASED
    assert stand.view().state is BuildState.QUEUED


def test_an_interrupt_gives_the_build_back_and_goes_on(stand: Stand) -> None:
    with pytest.raises(KeyboardInterrupt):
        stand.run(fail_with(KeyboardInterrupt()))
    assert stand.view().state is BuildState.QUEUED


def test_a_worker_that_shuts_down_claims_nothing(stand: Stand) -> None:
    stand.bench.stopping.set()
    assert stand.run() is Ended.NOTHING
    assert (stand.view().attempt, stand.transport.sent) == (0, [])


def test_nothing_waits_after_a_build_was_published(stand: Stand) -> None:
    assert [stand.run(), stand.run()] == [Ended.PUBLISHED, Ended.NOTHING]
    assert len(stand.backend.works) == 1


def test_a_source_of_a_namespace_without_trust_is_refused_without_a_sandbox(stand: Stand) -> None:
    bench = Bench(**{**vars(stand.bench), "trust_sources": frozenset({"other"})})
    assert run_build(bench) is Ended.FAILED
    error = stand.view().error
    assert error is not None
    assert (error.code, "namespace default" in error.message, stand.backend.works) == ("forbidden", True, [])


def test_a_pushed_bundle_is_proven_again_from_its_own_artifacts(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.run()
    pushed = a_manifest(altered(stand.spec, name=Name("pushed")), artifacts=(a_readable_artifact(),))
    reply: Any = stand.service.push(pushed)
    assert (reply.state, reply.build is None) == (BundleState.PENDING, False)
    proven = []

    def qualify(bundle: Path, **options: Any) -> SimpleNamespace:
        claimed = read_bundle(bundle).manifest
        proven.append((claimed.artifacts, claimed.qualification))
        proof = a_qualification(seconds=3.0)
        return SimpleNamespace(artifacts=pushed.artifacts, qualification=proof, canaries=pushed.canaries, paths={})

    monkeypatch.setattr("aot.pipeline.build.qualify", qualify)
    assert run_build(stand.bench) is Ended.PUBLISHED
    view = stand.service.call("get_build", build=reply.build)
    assert (view.state, view.bundle == reply.bundle) == (BuildState.PUBLISHED, False)
    assert proven == [(pushed.artifacts, Qualification())], "what the uploader claimed of the proof is dropped"


def test_a_pushed_bundle_that_asks_too_little_of_a_host_is_refused_before_it_runs(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.run()
    low = tuple(
        HostGuard(kind=guard.kind, value="2.17" if guard.kind == "libc" else guard.value) for guard in host_guards()
    )
    pushed = a_manifest(altered(stand.spec, name=Name("pushed")), artifacts=(a_readable_artifact(host_guards=low),))
    build = stand.service.push(pushed).build
    monkeypatch.setattr("aot.pipeline.build.qualify", lambda *_, **__: pytest.fail("it was run"))
    assert run_build(stand.bench) is Ended.FAILED
    error = stand.service.call("get_build", build=build).error
    assert (error.code, "its guard libc is 2.17, wanted 2.34" in error.message) == ("qualification-failed", True)


def test_the_same_spec_submitted_meanwhile_is_the_same_build(stand: Stand) -> None:
    replies: list[SubmitReply] = []
    assert stand.run(lambda work: replies.append(stand.service.submit(stand.spec))) is Ended.PUBLISHED
    replies.append(stand.service.submit(stand.spec))
    assert [(reply.created, reply.build.id) for reply in replies] == [(False, stand.build)] * 2
