"""Who is faster, compiled code or eager: percentiles of interleaved calls, and the rule that decides. Pure."""

import math
from collections.abc import Sequence

from aot.schema.artifact import Latency, Speed, Winner

# Below this a difference of medians is noise of the machine, and compiled code is kept.
SLOWER = 1.03


def latency_of(samples_us: Sequence[float], *, peak_memory_bytes: int = 0) -> Latency:
    """Return the percentiles of `samples_us`, of which there is at least one."""
    ordered = sorted(samples_us)
    p25, p50, p75, p90, p99 = (_percentile(ordered, share) for share in (0.25, 0.5, 0.75, 0.9, 0.99))
    return Latency(
        calls=len(ordered),
        p25_us=p25,
        p50_us=p50,
        p75_us=p75,
        p90_us=p90,
        p99_us=p99,
        peak_memory_bytes=peak_memory_bytes,
    )


def winner_of(eager: Latency, compiled: Latency) -> Winner:
    """Eager wins where compiled is slower beyond doubt: by more than 3 % at the median, with separated quartiles."""
    slower = compiled.p50_us > SLOWER * eager.p50_us and compiled.p25_us > eager.p75_us
    return Winner.EAGER if slower else Winner.COMPILED


def speed_of(point: dict[str, int], eager: Latency, compiled: Latency, graphs: Latency | None = None) -> Speed:
    """Compiled code is replayed as a CUDA graph where that is faster by more than noise: a graph costs memory."""
    winner, ours = Winner.COMPILED, compiled
    if graphs is not None and compiled.p50_us > SLOWER * graphs.p50_us:
        winner, ours = Winner.GRAPHS, graphs
    if winner_of(eager, ours) is Winner.EAGER:
        winner = Winner.EAGER
    return Speed(point=point, eager=eager, compiled=compiled, graphs=graphs, winner=winner)


def winner_over(speeds: Sequence[Speed]) -> Winner:
    """Sum up a whole coverage: eager or graphs, where that wins at every point that was measured.

    The loader decides call by call, by the measured point nearest to the call's sizes (`aot.runtime.winner`): no
    mean may let a point through at which compiled code is the slower one. Compiled where nothing was measured.
    """
    winners = {speed.winner for speed in speeds}
    return winners.pop() if len(winners) == 1 else Winner.COMPILED


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between neighbours, as numpy's default."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below), 3)
