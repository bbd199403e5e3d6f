"""Throughput: calls a second, by one caller and by two."""

import os
import threading
import time

import pytest
import torch

from aot.cli.bundles import throughput_words
from aot.qualify.speed import Contender, measure
from aot.qualify.throughput import throughput_of
from aot.schema.artifact import Latency, Speed, Throughput, Winner

CPU = torch.device("cpu")
several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")


def test_calls_of_one_thread_are_counted() -> None:
    found = throughput_of(lambda: time.sleep(0.002), device=CPU, call_seconds=0.002, seconds=1.0)
    assert found[0].threads == 1
    assert 100 < found[0].calls_per_second <= 500


@several_cores
def test_two_threads_get_more_through_where_the_call_lets_them() -> None:
    one, two = throughput_of(lambda: time.sleep(0.002), device=CPU, call_seconds=0.002, seconds=2.0)
    assert (one.threads, two.threads) == (1, 2)
    assert two.calls_per_second > 1.5 * one.calls_per_second


@several_cores
def test_two_threads_get_no_more_through_where_it_does_not() -> None:
    lock = threading.Lock()

    def run() -> None:
        with lock:
            time.sleep(0.002)

    one, two = throughput_of(run, device=CPU, call_seconds=0.002, seconds=2.0)
    assert two.calls_per_second < 1.2 * one.calls_per_second


def test_a_module_that_bears_one_thread_alone_is_measured_with_one() -> None:
    owner = threading.get_ident()

    def run() -> None:
        if threading.get_ident() != owner:
            raise RuntimeError("used by two threads")
        time.sleep(0.001)

    found = throughput_of(run, device=CPU, call_seconds=0.001, seconds=1.0)
    assert [one.threads for one in found] == [1]


def test_slow_calls_are_left_out() -> None:
    called: list[int] = []
    assert throughput_of(lambda: called.append(1), device=CPU, call_seconds=0.1, seconds=1.0) == ()
    assert called == []


def test_a_measured_speed_has_both_and_each_is_called_within_its_surroundings() -> None:
    entered: list[str] = []

    class Inside:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            entered.append(self.name)

        def __exit__(self, *_: object) -> None:
            entered.pop()

    def calling(name: str) -> Contender:
        def run() -> None:
            assert entered == [name]
            time.sleep(0.001)

        return Contender(run, lambda: Inside(name))

    found = measure({}, calling("eager"), calling("compiled"), device=CPU, seconds=0.3)
    assert found is not None
    for latency in (found.eager, found.compiled):
        assert latency.throughput[0].threads == 1
        assert latency.throughput[0].calls_per_second > 100


def test_throughput_is_shown_where_both_have_it() -> None:
    def latency(*rates: float) -> Latency:
        throughput = tuple(Throughput(threads=n, calls_per_second=rate) for n, rate in enumerate(rates, start=1))
        return Latency(calls=9, p25_us=1, p50_us=1, p75_us=1, p90_us=1, p99_us=1, throughput=throughput)

    both = Speed(point={}, eager=latency(1000.4), compiled=latency(2500.0, 4900.0), winner=Winner.COMPILED)
    assert throughput_words(both) == "; 1 thread 2,500 calls/s, eager 1,000"
    assert throughput_words(Speed(point={}, eager=latency(), compiled=latency(), winner=Winner.COMPILED)) == ""
