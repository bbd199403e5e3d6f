"""How many calls a second get through, with one thread calling and with two: what a server sees of the speed.

Runs in the numerics child after the latencies, so the figures are the child's claim.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aot.schema.artifact import Throughput

if TYPE_CHECKING:
    from torch import device as Device

# Of the time granted to a point, for each contender and number of threads.
SHARE = 0.1
MOST_SECONDS = 0.25
# Fewer calls say no more than the latencies do.
FEWEST_CALLS = 5


def throughput_of(
    run: Callable[[], Any], *, device: "Device", call_seconds: float, seconds: float
) -> tuple[Throughput, ...]:
    """Return the throughput of `run` for one thread and, on a CPU of several cores, for two.

    `seconds` are those granted to the whole point, `call_seconds` what one call takes. Nothing where that is too slow
    to be cheap. Two threads are left out where `run` does not bear them: a module may keep state of its own.
    """
    window = min(MOST_SECONDS, SHARE * seconds)
    if call_seconds * FEWEST_CALLS > window:
        return ()
    several = device.type == "cpu" and len(os.sched_getaffinity(0)) > 1
    found = []
    for threads in (1, 2) if several else (1,):
        rate = _rate(run, threads, device=device, seconds=window)
        if rate is not None:
            found.append(Throughput(threads=threads, calls_per_second=round(rate, 3)))
    return tuple(found)


def _rate(run: Callable[[], Any], threads: int, *, device: "Device", seconds: float) -> float | None:
    """Calls a second over all threads, or None where one of them raised."""
    calls, failures = [0] * threads, list[Exception]()
    ready = threading.Barrier(threads)

    def work(index: int) -> None:
        try:
            ready.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end and not failures:
                run()
                calls[index] += 1
        except Exception as error:
            failures.append(error)

    # One of them is this thread: a single caller then needs no other.
    others = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(1, threads)]
    for other in others:
        other.start()
    started = time.perf_counter()
    work(0)
    for other in others:
        other.join()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    elapsed = time.perf_counter() - started
    return None if failures else sum(calls) / elapsed
