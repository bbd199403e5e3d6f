"""`run_build` while the registry is away, or something else answers in its place: no finished build is lost by that."""

import time
from pathlib import Path
from typing import Any

import pytest

from aot.errors import BackendFailed, NotARegistry, RegistryUnreachable
from aot.schema.state import BuildState
from tests import worker_stand
from tests.fake_backend import Work
from tests.simulator import SimulatedReply
from tests.worker_stand import Stand, fail_with, shorten_lease
from worker.run import Ended

stand = worker_stand.stand  # a fixture


def test_a_registry_that_is_away_at_the_claim_is_told_to_the_caller(stand: Stand) -> None:
    stand.transport.gone = True
    with pytest.raises(RegistryUnreachable):
        stand.run()
    assert stand.view().attempt == 0


def test_a_registry_that_is_away_during_the_compile_costs_nothing(stand: Stand) -> None:
    def act(work: Work) -> None:
        stand.away(1.2)
        time.sleep(1.5)

    assert stand.run(act) is Ended.PUBLISHED


@pytest.mark.parametrize("path", ["/uploads", "/publish"])
def test_a_registry_that_is_away_at_the_end_is_waited_for(
    stand: Stand, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, once = stand.transport.send, []

    def sent(method: str, url: str, **options: Any) -> Any:
        if path in url and not once:
            once.append(url)
            stand.away(1.0)
        return send(method, url, **options)

    monkeypatch.setattr(stand.transport, "send", sent)
    assert stand.run() is Ended.PUBLISHED
    assert once and stand.view().state is BuildState.PUBLISHED


@pytest.mark.parametrize("path", ["/progress", "/uploads", "PUT", "/publish"])
def test_a_proxys_page_instead_of_the_registry_costs_no_finished_build(
    stand: Stand, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = page_instead_of(path, stand, monkeypatch)
    assert stand.run() is Ended.PUBLISHED
    assert pages and stand.view().state is BuildState.PUBLISHED


def test_nor_does_it_keep_a_build_that_is_given_back(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = page_instead_of("/release", stand, monkeypatch)
    assert stand.run(fail_with(OSError(5, "Input/output error"))) is Ended.RELEASED
    assert pages and stand.view().state is BuildState.QUEUED


def test_a_page_that_stays_while_the_source_is_fetched_gives_the_build_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*args: Any, **options: Any) -> None:
        raise NotARegistry("answered 404 with text/html")

    monkeypatch.setattr("worker.run.fetch_source", fetch)
    assert stand.run() is Ended.RELEASED


def page_instead_of(path: str, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first request whose address ends so, or of that method, is answered by an ingress without its service."""
    send, pages = stand.transport.send, list[str]()

    def sent(method: str, url: str, **options: Any) -> Any:
        if (url.endswith(path) or method == path) and not pages:
            pages.append(url)
            return SimulatedReply(404, b"<html>default backend</html>", {"content-type": "text/html"})
        return send(method, url, **options)

    monkeypatch.setattr(stand.transport, "send", sent)
    return pages


def test_a_failure_is_told_to_a_registry_that_comes_back(stand: Stand) -> None:
    def act(work: Work) -> None:
        stand.away(1.0)
        raise BackendFailed("the compiler crashed")

    assert stand.run(act) is Ended.FAILED
    assert stand.view().state is BuildState.FAILED


def test_a_registry_that_stays_away_longer_than_the_lease_ends_the_work(
    tmp_path: Path, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_lease(stand, monkeypatch)

    def act(work: Work) -> None:
        stand.transport.gone = True
        work.wait_until_stopped(seconds=10)

    assert stand.run(act) is Ended.STOPPED


def test_a_registry_that_is_away_while_the_source_is_fetched_gives_the_build_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*args: Any, **options: Any) -> None:
        raise RegistryUnreachable("could not reach the store")

    monkeypatch.setattr("worker.run.fetch_source", fetch)
    assert stand.run() is Ended.RELEASED
    assert stand.view().waiting == "worker-1 gave it back: could not reach the store"


def test_an_answer_to_publish_that_was_lost_is_asked_for_again(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    send, once = stand.transport.send, []

    def sent(method: str, url: str, **options: Any) -> Any:
        reply = send(method, url, **options)
        if url.endswith("/publish") and not once:
            once.append(url)
            raise RegistryUnreachable("the connection was cut", details={"sent": True})
        return reply

    monkeypatch.setattr(stand.transport, "send", sent)
    assert stand.run() is Ended.PUBLISHED
    assert once and stand.view().state is BuildState.PUBLISHED
