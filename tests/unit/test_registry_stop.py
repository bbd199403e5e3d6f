"""Told to stop: in a pause at once, in a pass after it, and at once when told again."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from registry.stop import Stop


@pytest.fixture
def stop() -> Iterator[Stop]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Stop().listen()
    for number, handler in before.items():
        signal.signal(number, handler)


def tell(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pause_ends_when_told(stop: Stop, number: int) -> None:
    began = time.monotonic()
    threading.Timer(0.1, tell, [number]).start()
    assert stop.pause(30) is False
    assert time.monotonic() - began < 5


def test_a_pass_is_not_interrupted_and_no_pause_follows(stop: Stop) -> None:
    tell()
    assert stop.told
    began = time.monotonic()
    assert stop.pause(30) is False
    assert time.monotonic() - began < 5


def test_told_again_it_ends_in_the_middle_of_a_pass(stop: Stop) -> None:
    tell()
    with pytest.raises(SystemExit) as ended:
        tell()
    assert ended.value.code == 128 + signal.SIGTERM


def test_who_is_not_told_goes_on(stop: Stop) -> None:
    assert stop.pause(0.01) is True
    assert stop.pause(0) is True
