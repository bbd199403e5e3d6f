"""The clock that replicas share: the database's time, told on between two questions, also while it is away."""

from datetime import UTC, datetime, timedelta

from aot.errors import StorageUnavailable
from registry.clock import ASK_AGAIN_SECONDS, ASK_SECONDS, SharedClock, sortable_id, time_of, utc_now

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Stand:
    """A database whose time a test sets, and a monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.told = NOON
        self.passed = 0.0
        self.asked = 0
        self.away = False
        self.clock = SharedClock(self.ask, monotonic=lambda: self.passed)

    def ask(self) -> datetime:
        self.asked += 1
        if self.away:
            raise StorageUnavailable("the database did not answer")
        return self.told


def test_it_tells_the_time_of_the_database_whatever_the_host_says(monkeypatch) -> None:
    stand = Stand()
    assert stand.clock() == NOON
    monkeypatch.setattr("registry.clock.utc_now", lambda: NOON + timedelta(hours=1))
    stand.passed = 7
    assert stand.clock() == NOON + timedelta(seconds=7)
    assert stand.asked == 1, "in between nobody is asked"


def test_it_asks_again_after_a_while_and_follows() -> None:
    stand = Stand()
    stand.clock()
    stand.told, stand.passed = NOON + timedelta(minutes=3), ASK_SECONDS
    assert (stand.clock(), stand.asked) == (NOON + timedelta(minutes=3), 2)


def test_while_the_database_is_away_it_goes_on_and_asks_soon_again() -> None:
    stand = Stand()
    stand.clock()
    stand.away, stand.passed = True, ASK_SECONDS
    assert stand.clock() == NOON + timedelta(seconds=ASK_SECONDS)
    stand.passed += ASK_AGAIN_SECONDS / 2
    stand.clock()
    assert stand.asked == 2
    stand.passed += ASK_AGAIN_SECONDS
    stand.clock()
    assert stand.asked == 3


def test_before_the_first_answer_the_clock_of_the_host_stands_in() -> None:
    stand = Stand()
    stand.away = True
    assert abs(stand.clock() - utc_now()) < timedelta(seconds=5)


def test_an_identifier_tells_when_it_was_made() -> None:
    assert time_of(sortable_id(NOON)) == NOON
