"""The queue's benchmark carries what it queues: a queue of builds that no worker gets measures nothing."""

from benchmarks.queue import carry_all, longest_wait, measure_claims


def test_every_queued_build_is_published_once() -> None:
    found = carry_all(24, None)
    assert (found["published"], found["bundles"], found["duplicates"], found["left"]) == (24, 24, 0, 0)


def test_claims_are_timed_while_the_queue_stays_as_long() -> None:
    found = measure_claims(8, None, claims=16)
    assert found["claims"] == 16
    assert 0 < found["p50_ms"] <= found["p99_ms"]


def test_the_longest_wait_is_counted_in_turns_of_others() -> None:
    assert longest_wait(["a", "b", "b", "b", "a", "b"]) == 3
