"""Callers that were looked up just now: for how long, and how many."""

from datetime import UTC, datetime, timedelta

from registry.services import callers
from registry.services.callers import REMEMBERED_SECONDS, Callers
from registry.services.tokens import Principal

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANYBODY = Principal("somebody", frozenset())


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_is_known_from_when_the_database_was_asked() -> None:
    seconds = Seconds()
    known = Callers(monotonic=seconds)
    assert known.find("a") is None
    known.remember("a", ANYBODY, asked_at=98.0, now=NOW)
    seconds.now = 98.0 + REMEMBERED_SECONDS - 0.01
    assert known.find("a") is ANYBODY
    assert known.find("b") is None
    seconds.now += 0.01
    assert known.find("a") is None


def test_a_token_that_ends_sooner_is_known_no_longer_than_it_lives() -> None:
    seconds = Seconds()
    known = Callers(monotonic=seconds)
    mortal = Principal("somebody", frozenset(), expires_at=NOW + timedelta(seconds=1))
    known.remember("a", mortal, asked_at=100.0, now=NOW)
    seconds.now = 100.99
    assert known.find("a") is mortal
    seconds.now = 101.0
    assert known.find("a") is None


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(callers, "MOST_REMEMBERED", 3)
    known = Callers(monotonic=Seconds())
    for secret in "abcd":
        known.remember(secret, ANYBODY, asked_at=100.0, now=NOW)
    assert [known.find(secret) is not None for secret in "abcd"] == [False, False, False, True]


def test_secrets_are_not_kept() -> None:
    known = Callers(monotonic=Seconds())
    known.remember("aot_secret", ANYBODY, asked_at=100.0, now=NOW)
    assert "aot_secret" not in repr(vars(known))
