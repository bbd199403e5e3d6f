"""An attempt beside its work: the lease, progress and log lines, as the registry receives them."""

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.errors import LeaseLost, RegistryUnreachable
from aot.schema.report import Phase
from aot.schema.state import BuildState
from aot.schema.wire.builds import Claim
from tests.builders import a_profile, a_spec
from tests.service import Service, a_service
from tests.transport import AppTransport, client_of
from worker.attempt import Attempt
from worker.lines import MOST_LINES


class Stand:
    """A registry with one claimed build. Its clock is turned along with the real one by `pass_time`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.register(a_profile())
        self.build = service.submit(a_spec()).build.id
        self.claim: Claim = service.claim("cpu-v3", build=self.build)
        client = client_of(service)
        assert isinstance(client.transport, AppTransport)
        self.client, self.transport = client, client.transport
        self.stopping = threading.Event()

    def attempt(self) -> Attempt:
        return Attempt(self.client, self.claim, asked_at=time.monotonic(), stopping=self.stopping)

    def log(self) -> list[str]:
        return [line.text for line in self.client.get_build_log(self.build, limit=5000).lines]

    def view(self) -> Any:
        return self.client.get_build(self.build)

    def pass_time(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            self.service.clock.advance(0.1)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr("worker.attempt.TELL_SECONDS", 0.05)
    with a_service(tmp_path, AOT_LEASE_SECONDS="1.5") as service:
        yield Stand(service)


def wait_for(condition: Any, *, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def test_the_lease_lives_as_long_as_the_work_however_silent_that_is(stand: Stand) -> None:
    with stand.attempt() as attempt:
        stand.pass_time(3 * stand.claim.lease_seconds)
        assert stand.service.sweep().expired == ()
        assert attempt.should_stop() is None
    assert stand.view().state is BuildState.RUNNING
    stand.service.clock.advance(stand.claim.lease_seconds + 0.1)
    assert stand.service.sweep().expired == (stand.build,), "nobody renews it once the block is left"


def test_phases_steps_and_lines_arrive_in_their_order(stand: Stand) -> None:
    with stand.attempt() as attempt:
        for region in range(1, 4):
            attempt.on_event({"phase": "compiling", "step": f"region {region} of 3"})
            attempt.on_event({"line": f"fusing region {region}"})
            time.sleep(0.07)
        attempt.on_event({"phase": "tuning"})
        attempt.on_event({"phase": "qualifying", "step": "start: loading"})
        attempt.settle()
    assert stand.log() == [
        "compiling: region 1 of 3",
        "fusing region 1",
        "compiling: region 2 of 3",
        "fusing region 2",
        "compiling: region 3 of 3",
        "fusing region 3",
        "tuning",
        "qualifying: start: loading",
    ]
    assert (stand.view().phase, stand.view().step) == (Phase.QUALIFYING, "start: loading")


def test_progress_is_seen_while_the_work_goes_on(stand: Stand) -> None:
    with stand.attempt() as attempt:
        attempt.on_event({"phase": "compiling", "step": "region 1 of 2"})
        wait_for(lambda: stand.view().step == "region 1 of 2")
        attempt.on_event({"phase": "compiling", "step": "region 2 of 2"})
        wait_for(lambda: stand.view().step == "region 2 of 2")


def test_lines_are_told_once_and_in_order_however_many_threads_tell(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, delays = stand.transport.send, itertools.cycle([0.1, 0.0, 0.05, 0.0])

    def sent(*args: Any, **options: Any) -> Any:
        time.sleep(next(delays))  # a later request may well arrive first
        return send(*args, **options)

    monkeypatch.setattr(stand.transport, "send", sent)
    spoken = threading.Event()
    with stand.attempt() as attempt:

        def tell() -> None:
            while not spoken.is_set():
                attempt.tell()
                time.sleep(0.005)

        tellers = [threading.Thread(target=tell) for _ in range(4)]
        for teller in tellers:
            teller.start()
        for number in range(60):
            attempt.on_event({"line": f"line {number}"})
            time.sleep(0.01)
        spoken.set()
        for teller in tellers:
            teller.join()
        attempt.tell()
    assert stand.log() == [f"line {number}" for number in range(60)]


def test_a_flood_of_lines_is_bounded_and_says_what_is_missing(stand: Stand) -> None:
    stand.transport.gone = True
    with stand.attempt() as attempt:
        for number in range(MOST_LINES + 200):
            attempt.on_event({"line": f"line {number}"})
        time.sleep(0.2)  # some tries to tell them, all in vain
        stand.transport.gone = False
        attempt.tell()
    assert stand.log() == ["[200 lines left out]", *(f"line {number}" for number in range(200, MOST_LINES + 200))]


def test_what_could_not_be_told_is_told_later(stand: Stand) -> None:
    with stand.attempt() as attempt:
        stand.transport.gone = True
        attempt.on_event({"phase": "exporting"})
        attempt.on_event({"line": "one"})
        with pytest.raises(RegistryUnreachable):
            attempt.tell()
        attempt.settle()  # the same, and not an error
        attempt.on_event({"line": "two"})
        stand.transport.gone = False
        wait_for(lambda: stand.log() == ["exporting", "one", "two"])
    assert stand.view().phase is Phase.EXPORTING


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"phase": "no such phase"},
        {"phase": ["compiling"]},
        {"phase": None, "step": "x"},
        {"line": ""},
        {"line": None},
        {"other": object()},
    ],
)
def test_an_event_that_means_nothing_is_dropped(stand: Stand, event: dict[str, Any]) -> None:
    with stand.attempt() as attempt:
        attempt.on_event(event)
        attempt.tell()
    assert (stand.log(), stand.view().phase) == ([], None)


def test_what_a_source_says_is_made_plain_text(stand: Stand) -> None:
    with stand.attempt() as attempt:
        attempt.on_event({"line": "\x1b[31mred\x1b[0m\tand \x00 \ud800 \x1b]0;title\x07"})
        attempt.on_event({"phase": "compiling", "step": "region\n" + "x" * 500})
        attempt.on_event({"line": {"not": "text"}})
        attempt.tell()
    lines = stand.log()
    assert lines[0] == "red and \ufffd \ufffd \ufffd]0;title\ufffd"
    assert lines[1:] == ["compiling: region " + "x" * 193, "{'not': 'text'}"]
    assert len(stand.view().step) == 200


def test_log_files_of_children_are_told_as_they_grow(stand: Stand, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "compile").mkdir(parents=True)
    with stand.attempt() as attempt:
        with attempt.follow(work), (work / "compile" / "stderr.txt").open("wb", buffering=0) as stream:
            stream.write(b"first line\nsecond li")
            wait_for(lambda: stand.log() == ["first line"])
            stream.write(b"ne\nno end")
            wait_for(lambda: stand.log() == ["first line", "second line"])
        attempt.settle()
    assert stand.log() == ["first line", "second line", "no end"]


def test_a_cancelled_build_is_heard_of_beside_the_work(stand: Stand) -> None:
    with stand.attempt() as attempt:
        stand.client.cancel(stand.build, reason="wrong recipe")
        wait_for(lambda: attempt.should_stop() is not None)
        assert "wrong recipe" in (attempt.should_stop() or "")


def test_a_lease_that_another_worker_has_is_heard_of_beside_the_work(stand: Stand) -> None:
    with stand.attempt() as attempt:
        stand.service.clock.advance(5)
        stand.service.sweep()
        wait_for(lambda: attempt.should_stop() is not None)
        assert "lease" in (attempt.should_stop() or "")
        attempt.on_event({"line": "late"})
        with pytest.raises(LeaseLost):
            attempt.settle()


def test_a_token_that_is_too_old_stops_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.attempt.TELL_SECONDS", 0.05)
    with a_service(tmp_path, AOT_LEASE_SECONDS="1.5", AOT_ATTEMPT_SECONDS="2") as service:
        stand = Stand(service)
        with stand.attempt() as attempt:
            stand.service.clock.advance(3)
            wait_for(lambda: attempt.should_stop() is not None)
            assert "token" in (attempt.should_stop() or "")


def test_a_fault_in_telling_does_not_cost_the_lease(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = []

    def broken(*args: Any, **options: Any) -> None:
        faults.append(args)
        if len(faults) < 3:
            raise RuntimeError("a fault")

    with stand.attempt() as attempt:
        monkeypatch.setattr(attempt, "tell", broken)
        stand.pass_time(2 * stand.claim.lease_seconds)
        assert (attempt.should_stop(), len(faults) > 3) == (None, True)
    assert stand.service.sweep().expired == ()


def test_a_registry_that_hangs_does_not_hold_the_end_of_the_attempt(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()

    def hang(*args: Any, **options: Any) -> None:
        waiting.set()
        time.sleep(6)
        raise RegistryUnreachable("timed out")

    with stand.attempt() as attempt:
        monkeypatch.setattr(stand.transport, "send", hang)
        attempt.on_event({"line": "x"})
        assert waiting.wait(2)
        begun = time.monotonic()
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("endpoint", ["renew", "progress"])
def test_the_lease_is_counted_from_before_the_request_that_extends_it(stand: Stand, endpoint: str) -> None:
    send, answered = stand.transport.send, threading.Event()
    delay = 0.6 * stand.claim.lease_seconds

    def sent(method: str, url: str, **options: Any) -> Any:
        if answered.is_set() or not url.endswith(f"/{endpoint}"):
            raise RegistryUnreachable("could not reach the registry")
        reply = send(method, url, **options)  # the registry counts from here
        time.sleep(delay)  # and its answer is slow
        answered.set()
        return reply

    stand.transport.send = sent  # type: ignore[method-assign]
    with stand.attempt() as attempt:
        if endpoint == "progress":
            attempt.on_event({"line": "x"})
        assert answered.wait(5)
        time.sleep(stand.claim.lease_seconds - delay + 0.1)
        assert "the lease ran out" in (attempt.should_stop() or "")


def test_the_lease_of_a_claim_that_was_answered_late_is_shorter(stand: Stand) -> None:
    long_ago = time.monotonic() - stand.claim.lease_seconds
    attempt = Attempt(stand.client, stand.claim, asked_at=long_ago, stopping=stand.stopping)
    assert "the lease ran out" in (attempt.should_stop() or "")


def test_a_lease_is_renewed_with_less_patience_than_it_has_time(stand: Stand) -> None:
    asked = []
    send = stand.transport.send

    def sent(*args: Any, timeout_seconds: float, **options: Any) -> Any:
        asked.append(timeout_seconds)
        return send(*args, timeout_seconds=timeout_seconds, **options)

    stand.transport.send = sent  # type: ignore[method-assign]
    with stand.attempt():
        wait_for(lambda: asked)
    assert max(asked) <= stand.claim.lease_seconds
