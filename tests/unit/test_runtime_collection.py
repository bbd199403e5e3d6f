"""Captures at once turn the garbage collection off and on together."""

import gc
from threading import Event, Thread

from aot.runtime.collection import no_collection


def test_garbage_is_collected_again_when_the_last_of_captures_at_once_has_ended() -> None:
    first, second, enabled = Event(), Event(), []

    def one() -> None:
        with no_collection:
            first.set()
            assert second.wait(10)

    def other() -> None:
        assert first.wait(10)
        with no_collection:
            second.set()
            begun.join(10)
            enabled.append((begun.is_alive(), gc.isenabled()))

    begun, later = Thread(target=one), Thread(target=other)
    assert gc.isenabled()
    for thread in (begun, later):
        thread.start()
    for thread in (begun, later):
        thread.join(10)
    assert enabled == [(False, False)] and gc.isenabled()


def test_garbage_stays_uncollected_where_it_was_before() -> None:
    gc.disable()
    try:
        with no_collection:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
