"""Speed: interleaved, and no verdict from a machine that was busy with something else."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from aot.qualify import speed
from aot.qualify.speed import FEWEST_CALLS, Contender, measure
from aot.schema.artifact import Winner

CPU = torch.device("cpu")


def sleeping(seconds: float, log: list[str] | None = None, name: str = "") -> Contender:
    def run() -> None:
        if log is not None:
            log.append(name)
        time.sleep(seconds)

    return Contender(run, contextlib.nullcontext)


def test_the_slower_one_loses_and_both_make_equally_many_calls() -> None:
    found = measure({"batch": 1}, sleeping(0.0005), sleeping(0.003), device=CPU, seconds=0.3)
    assert found is not None
    assert found.winner is Winner.EAGER
    assert found.eager.calls == found.compiled.calls >= FEWEST_CALLS
    assert found.point == {"batch": 1}


def test_the_faster_one_wins() -> None:
    found = measure({}, sleeping(0.003), sleeping(0.0005), device=CPU, seconds=0.3)
    assert found is not None
    assert found.winner is Winner.COMPILED


def test_calls_alternate_and_each_begins_half_of_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.qualify.throughput.SHARE", 0.0)
    log: list[str] = []
    measure({}, sleeping(0.001, log, "e"), sleeping(0.001, log, "c"), device=CPU, seconds=0.05)
    measured = "".join(log[2 + 2 * speed.WARM_CALLS : -2])
    pairs = [measured[index : index + 2] for index in range(0, len(measured) - 1, 2)]
    assert set(pairs) == {"ec", "ce"}
    assert abs(pairs.count("ec") - pairs.count("ce")) <= 1


def test_calls_too_slow_for_the_time_granted_are_not_measured() -> None:
    assert measure({}, sleeping(0.05), sleeping(0.05), device=CPU, seconds=0.01) is None


def test_a_speed_that_is_required_is_measured_by_few_calls_however_slow() -> None:
    log: list[str] = []
    contenders = sleeping(0.03, log, "e"), sleeping(0.02, log, "c")
    found = measure({}, *contenders, device=CPU, seconds=0.001, required=True)
    assert found is not None
    assert (found.winner, found.eager.calls) == (Winner.COMPILED, speed.FEWEST_SLOW_CALLS)
    assert len(log) == 2 + 2 * speed.FEWEST_SLOW_CALLS + 2, "one to see, the measured ones, one for the memory"


def busy(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process look as if it was taken off its core `rate` times a second."""
    monkeypatch.setattr(speed, "_involuntary_switches", lambda: int(time.perf_counter() * rate))


def a_fast_call_that_is_often_late() -> Contender:
    turns = itertools.count()

    def run() -> None:
        time.sleep(0.0005 if next(turns) % 10 == 0 else 0.004)

    return Contender(run, contextlib.nullcontext)


def test_a_busy_machine_does_not_let_eager_win_while_the_fastest_calls_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy(200, monkeypatch)
    found = measure({}, sleeping(0.0005), a_fast_call_that_is_often_late(), device=CPU, seconds=0.3)
    assert found is not None
    assert found.compiled.p50_us > 2 * found.eager.p50_us  # what was measured is recorded as it was
    assert found.winner is Winner.COMPILED


def test_an_idle_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    busy(0, monkeypatch)
    found = measure({}, sleeping(0.0005), a_fast_call_that_is_often_late(), device=CPU, seconds=0.3)
    assert found is not None
    assert found.winner is Winner.EAGER


def test_what_surrounds_a_call_is_not_measured() -> None:
    @contextlib.contextmanager
    def slowly() -> Iterator[None]:
        time.sleep(0.01)
        yield

    found = measure({}, Contender(lambda: None, slowly), sleeping(0.0), device=CPU, seconds=0.5)
    assert found is not None
    assert found.eager.p50_us < 5000


def test_memory_of_a_call_is_what_it_needs_on_top() -> None:
    def allocate() -> None:
        held = torch.ones(16 << 20)  # 64 MiB
        time.sleep(0.01)
        del held

    found = measure({}, Contender(allocate, contextlib.nullcontext), sleeping(0.001), device=CPU, seconds=1.0)
    assert found is not None
    assert 50 << 20 < found.eager.peak_memory_bytes < 200 << 20
    assert found.compiled.peak_memory_bytes < 20 << 20


def test_graphs_are_measured_beside_the_two_and_win_where_they_are_fastest() -> None:
    ways = sleeping(0.003), sleeping(0.002)
    found = measure({}, *ways, device=CPU, seconds=0.3, graphs=sleeping(0.0005))
    assert found is not None and found.graphs is not None
    assert found.winner is Winner.GRAPHS
    assert found.graphs.calls == found.eager.calls == found.compiled.calls


def test_every_way_begins_and_ends_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.qualify.throughput.SHARE", 0.0)
    log: list[str] = []
    ways = sleeping(0.001, log, "e"), sleeping(0.001, log, "c")
    measure({}, *ways, device=CPU, seconds=0.05, graphs=sleeping(0.001, log, "g"))
    measured = "".join(log[3 + 3 * speed.WARM_CALLS : -3])
    rounds = {measured[index : index + 3] for index in range(0, len(measured) - 2, 3)}
    assert rounds == {"ecg", "gce"}
