"""Counters are exact whoever counts."""

import sys
import threading

from aot.runtime.counters import NAMES, Counters


def test_they_begin_at_zero_and_count_what_they_are_told() -> None:
    counters = Counters()
    assert counters.read() == dict.fromkeys(NAMES, 0)
    for _ in range(3):
        counters.compiled()
    counters.eager()
    counters.guard_misses()
    found = counters.read()
    assert found == dict.fromkeys(NAMES, 0) | {"calls": 4, "compiled": 3, "eager": 1, "guard_misses": 1}
    assert counters.read() == found, "reading counts nothing"


def test_no_count_is_lost_between_threads() -> None:
    counters, interval = Counters(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [counters.compiled() for _ in range(20_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert counters.read()["compiled"] == 80_000
