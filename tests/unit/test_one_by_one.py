"""One thing that is out of order keeps none of the others from its turn; a store that is away ends the pass."""

import pytest

from aot.errors import StorageUnavailable
from registry.services.one_by_one import MOST_FAILURES, one_by_one


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
