"""Speed of eager and compiled calls, interleaved in one process, and the memory that a call needs on top.

Interleaved, because a shared machine changes its pace within seconds: both then meet the same moments. Runs in the
numerics child, so the figures are the child's claim.
"""

import ctypes
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from aot.qualify.throughput import throughput_of
from aot.qualify.winner import latency_of, speed_of
from aot.schema.artifact import Latency, Speed, Winner

if TYPE_CHECKING:
    from torch import device as Device

WARM_CALLS = 3
MOST_CALLS = 200
# As many calls are made even where they take longer than was granted, since fewer say nothing.
FEWEST_CALLS = 5
# Where a speed is required of a call that is slower than that.
FEWEST_SLOW_CALLS = 3
SAMPLE_SECONDS = 0.001
CONFIRMATIONS = 2
# An idle machine takes a running process off its core a few times a second, a busy one a hundred times.
SWITCHES_PER_SECOND = 25.0
# On a busy machine the fastest of many calls still tells how long the work takes.
SLOWER_AT_BEST = 1.25


@dataclass(frozen=True)
class Contender:
    """One way to make the call. `around` is entered outside of the measured time."""

    run: Callable[[], Any]
    around: Callable[[], Any]


def measure(
    point: dict[str, int],
    eager: Contender,
    compiled: Contender,
    *,
    device: "Device",
    seconds: float,
    required: bool = False,
    graphs: Contender | None = None,
) -> Speed | None:
    """Return the speed of both, and of `graphs` where there are any, at `point` in about `seconds`.

    Where FEWEST_CALLS would take five times that: None, or, if a speed is `required`, that of FEWEST_SLOW_CALLS
    without further warm calls; noise is small beside calls that slow.

    Eager wins only if it wins twice running, and not merely because the process was pushed aside meanwhile: where
    other programs take the cores, a parallel loop waits for its last thread, and latencies say nothing of the code.
    """
    ways = (eager, compiled) if graphs is None else (eager, compiled, graphs)
    slowest = max(_time_once(one, device) for one in ways)
    slow = FEWEST_CALLS * len(ways) * slowest > 5 * seconds
    if slow and not required:
        return None
    fewest, warm = (FEWEST_SLOW_CALLS, 0) if slow else (FEWEST_CALLS, WARM_CALLS)
    doubtful = False
    for _ in range(CONFIRMATIONS):
        speed, beyond_doubt = _measure_once(point, ways, device=device, seconds=seconds, fewest=fewest, warm=warm)
        if speed.winner is not Winner.EAGER:
            break
        doubtful |= not beyond_doubt
    winner = Winner.COMPILED if doubtful and speed.winner is Winner.EAGER else speed.winner
    measured = {"eager": (speed.eager, eager), "compiled": (speed.compiled, compiled)}
    if graphs is not None and speed.graphs is not None:
        measured["graphs"] = (speed.graphs, graphs)
    latencies = {
        name: _with_throughput(latency, one, device=device, seconds=seconds)
        for name, (latency, one) in measured.items()
    }
    return msgspec.structs.replace(speed, winner=winner, **latencies)


def _with_throughput(latency: Latency, contender: Contender, *, device: "Device", seconds: float) -> Latency:
    with contender.around():
        found = throughput_of(contender.run, device=device, call_seconds=latency.p50_us / 1e6, seconds=seconds)
    return msgspec.structs.replace(latency, throughput=found)


def _measure_once(
    point: dict[str, int],
    ways: Sequence[Contender],
    *,
    device: "Device",
    seconds: float,
    fewest: int,
    warm: int,
) -> tuple[Speed, bool]:
    """Return one measurement, and whether a win of eager's would be beyond doubt."""
    for one in ways:
        for _ in range(warm):
            _time_once(one, device)
    samples: list[list[float]] = [[] for _ in ways]
    order = list(range(len(ways)))
    started, pushed_aside = time.perf_counter(), _involuntary_switches()
    while len(samples[0]) < MOST_CALLS:
        if time.perf_counter() - started > seconds and len(samples[0]) >= fewest:
            break
        # First one, then the other begins: neither always finds the caches that the other has left.
        order.reverse()
        for index in order:
            samples[index].append(_time_once(ways[index], device) * 1e6)
    rate = (_involuntary_switches() - pushed_aside) / (time.perf_counter() - started)
    peaks = [_peak_bytes(one, device) for one in ways]
    latencies = [latency_of(taken, peak_memory_bytes=peak) for taken, peak in zip(samples, peaks, strict=True)]
    undisturbed = rate < SWITCHES_PER_SECOND or min(map(min, samples[1:])) > SLOWER_AT_BEST * min(samples[0])
    return speed_of(point, *latencies), undisturbed


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _time_once(contender: Contender, device: "Device") -> float:
    with contender.around():
        started = time.perf_counter()
        contender.run()
        _synchronize(device)
        return time.perf_counter() - started


def _synchronize(device: "Device") -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _peak_bytes(contender: Contender, device: "Device") -> int:
    """Return how much more memory there was in use during one call than before it."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        _time_once(contender, device)
        return max(0, torch.cuda.max_memory_allocated(device) - before)
    # The allocator keeps what the other contender has freed; without this its peak would hide in there.
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident_bytes()
    with _sampling() as highest:
        _time_once(contender, device)
    return max(0, highest() - before)


@contextmanager
def _sampling() -> Any:
    """Sample this process's resident memory beside the work; what is shorter than SAMPLE_SECONDS may be missed."""
    peak = _resident_bytes()
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, _resident_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: max(peak, _resident_bytes())
    finally:
        done.set()
        thread.join()


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * 4096
