"""What a finished build goes through on its way up: damaged uploads are sent again, and fail no build."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from aot.errors import AotError, BlobMissing, DigestMismatch, Forbidden, InvalidConfig, SizeMismatch
from aot.pipeline import publish_bundle
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.state import BuildState
from aot.schema.wire.errors import ErrorBody
from tests import worker_stand
from tests.builders import a_profile
from tests.simulator import SimulatedReply
from tests.worker_stand import Stand, next_turn, shorten_lease
from worker.attempt import Attempt
from worker.run import MOST_HOST_FAULTS, Ended

stand = worker_stand.stand  # a fixture


@pytest.mark.parametrize("error", [BlobMissing("not there"), DigestMismatch("other bytes")], ids=lambda e: e.code)
def test_an_upload_that_arrives_damaged_is_sent_again_with_pauses(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, error: AotError
) -> None:
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.01)
    uploads = never_arrives(monkeypatch, error, times=5)
    assert stand.run() is Ended.PUBLISHED
    assert len(uploads) == 6
    pauses = [after - before for before, after in pairwise(uploads)]
    assert all(pause >= 0.01 * 2**number for number, pause in enumerate(pauses)), pauses


def test_one_that_never_arrives_gives_the_build_back_and_is_nobodys_fault(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.attempt.PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.02)
    with monkeypatch.context() as broken:
        never_arrives(broken, DigestMismatch("other bytes"), times=1000)
        for _ in range(MOST_HOST_FAULTS + 1):
            assert stand.run() is Ended.RELEASED
            next_turn(stand)
    view = stand.view()
    assert (view.state, view.attempt) == (BuildState.QUEUED, MOST_HOST_FAULTS + 1)
    assert view.waiting == "worker-1 gave it back: an upload did not arrive as it was sent: other bytes"
    assert stand.run() is Ended.PUBLISHED


def test_what_the_store_holds_wrong_is_looked_at_by_the_registry(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written over what is there, no upload would ever mend it."""
    monkeypatch.setattr("worker.attempt.PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.02)
    wrong, told = Digest.of(b"bundle"), []
    release = Attempt.release
    monkeypatch.setattr(
        Attempt, "release", lambda *given, **more: told.append(more["damaged"]) or release(*given, **more)
    )
    error = SizeMismatch("the store holds 40", details={"digest": str(wrong)})
    never_arrives(monkeypatch, error, times=1000)
    assert stand.run() is Ended.RELEASED
    assert told == [(wrong,)]


def test_it_is_sent_again_until_the_lease_ends(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for as long as patience would last: another holds the build then."""
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.01)
    uploads = never_arrives(monkeypatch, DigestMismatch("other bytes"), times=1000)
    shorten_lease(stand, monkeypatch)
    begun = time.monotonic()
    assert stand.run(lambda work: setattr(stand.transport, "gone", True)) is Ended.STOPPED
    assert len(uploads) > 2 and time.monotonic() - begun < 10


def test_a_file_that_this_disk_has_changed_is_the_hosts_fault(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = publish_bundle

    def rotten(client: Any, staged: Any, **options: Any) -> Any:
        path = next(iter(staged.paths.values()))
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[::-1])
        return publish(client, staged, **options)

    monkeypatch.setattr("worker.run.publish_bundle", rotten)
    assert stand.run() is Ended.RELEASED
    assert "is not what was written" in stand.view().waiting
    next_turn(stand)
    assert stand.bench.client.claim(stand.bench.name, profiles=(a_profile().name,)).claim.host_faults == 1


def never_arrives(monkeypatch: pytest.MonkeyPatch, error: AotError, *, times: int) -> list[float]:
    """So many uploads go wrong. Returns when each was begun, as it happens."""
    publish, begun = publish_bundle, list[float]()

    def flaky(*arguments: Any, **options: Any) -> Any:
        begun.append(time.monotonic())
        if len(begun) <= times:
            raise error
        return publish(*arguments, **options)

    monkeypatch.setattr("worker.run.publish_bundle", flaky)
    return begun


SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_clock_that_is_off_gives_the_build_back_and_is_named(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The store refuses what the registry has signed: neither the build nor the worker can mend that."""
    monkeypatch.setattr("worker.attempt.PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.02)
    send = stand.transport.send

    def skewed(asked: str, url: str, **options: Any) -> Any:
        if asked == method and stand.leads_to_bytes(url):
            return SimulatedReply(403, SKEWED, {"content-type": "application/xml"})
        return send(asked, url, **options)

    with monkeypatch.context() as off:
        off.setattr(stand.transport, "send", skewed)
        assert stand.run() is Ended.RELEASED
    assert stand.view().state is BuildState.QUEUED
    assert "403 RequestTimeTooSkewed: The difference is too large" in stand.view().waiting
    next_turn(stand)
    assert stand.run() is Ended.PUBLISHED


def answering(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, method: str, where: str, reply: Callable[[], SimulatedReply]
) -> None:
    """Every such request is answered with this; what arrives late is not waited for. `where` "": of links."""
    monkeypatch.setattr("worker.attempt.PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("worker.attempt.PAUSE_SECONDS", 0.02)
    send = stand.transport.send

    def answer(asked: str, url: str, **options: Any) -> Any:
        is_meant = asked == method and (where in url if where else stand.leads_to_bytes(url))
        return reply() if is_meant else send(asked, url, **options)

    monkeypatch.setattr(stand.transport, "send", answer)


def of_registry(status: int, error: AotError) -> Callable[[], SimulatedReply]:
    return lambda: SimulatedReply(status, encode(ErrorBody.of(error)), {"content-type": "application/json"})


@pytest.mark.parametrize(("method", "where"), [("POST", "/v1/uploads"), ("PUT", ""), ("POST", "/publish"), ("GET", "")])
def test_a_store_that_refuses_the_registry_gives_the_build_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, method: str, where: str
) -> None:
    refused = InvalidConfig("could not look for it in bucket b: 403", hint="see the rights")
    with monkeypatch.context() as off:
        answering(stand, off, method, where, of_registry(500, refused))
        assert stand.run() is Ended.RELEASED
    assert (stand.view().state, "in bucket b: 403" in stand.view().waiting) == (BuildState.QUEUED, True)
    next_turn(stand)
    assert stand.run() is Ended.PUBLISHED


@pytest.mark.parametrize("where", ["/v1/uploads", "/publish"])
def test_what_the_registry_itself_forbids_ends_the_build(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A link's refusal passes with the next link. This one would come again for ever."""
    answering(stand, monkeypatch, "POST", where, of_registry(403, Forbidden("not for this namespace")))
    assert stand.run() is Ended.FAILED
    error = stand.view().error
    assert error is not None and (error.code, error.message) == ("forbidden", "not for this namespace")


@pytest.mark.parametrize("code", ["ExpiredToken", "IncompleteBody", "NeverHeardOf"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_link_that_is_refused_with_400_gives_the_build_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, method: str, code: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    with monkeypatch.context() as off:
        answering(stand, off, method, "", lambda: SimulatedReply(400, body, {"content-type": "application/xml"}))
        assert stand.run() is Ended.RELEASED
    assert f"400 {code}: no" in stand.view().waiting
    next_turn(stand)
    assert stand.run() is Ended.PUBLISHED
