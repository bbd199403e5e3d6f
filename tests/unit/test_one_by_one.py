"""One thing that is out of order keeps none of the others from its turn; a store that is away ends the pass."""

import threading

import pytest

from aot.errors import StorageUnavailable
from registry.services.one_by_one import AT_ONCE, MOST_FAILURES, one_by_one, several_at_once


def test_the_others_are_done_and_the_first_failure_is_raised() -> None:
    done: list[int] = []

    def act(thing: int) -> None:
        if thing % 2:
            raise StorageUnavailable(f"thing {thing}")
        done.append(thing)

    with pytest.raises(StorageUnavailable, match="thing 1"):
        one_by_one(range(8), act)
    assert done == [0, 2, 4, 6]


def test_so_many_failures_in_a_row_end_the_pass() -> None:
    tried: list[int] = []

    def act(thing: int) -> None:
        tried.append(thing)
        raise StorageUnavailable("the store is away")

    with pytest.raises(StorageUnavailable):
        one_by_one(range(100), act)
    assert len(tried) == MOST_FAILURES


def test_other_errors_are_bugs_and_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        one_by_one([1], lambda thing: thing / 0)


def test_several_run_beside_each_other_and_one_that_fails_keeps_none_from_its_turn() -> None:
    meeting, done = threading.Barrier(AT_ONCE, timeout=20), list[int]()

    def act(thing: int) -> None:
        if thing < AT_ONCE:
            meeting.wait()
        if thing % 2:
            raise StorageUnavailable(f"thing {thing}")
        done.append(thing)

    with pytest.raises(StorageUnavailable, match="thing 1"):
        several_at_once(range(3 * AT_ONCE), act)
    assert sorted(done) == list(range(0, 3 * AT_ONCE, 2))


def test_so_many_failures_in_a_row_leave_what_has_not_begun() -> None:
    tried: list[int] = []

    def act(thing: int) -> None:
        tried.append(thing)
        raise StorageUnavailable("the store is away")

    with pytest.raises(StorageUnavailable):
        several_at_once(range(100), act)
    assert len(tried) <= AT_ONCE + MOST_FAILURES
