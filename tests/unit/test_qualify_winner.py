"""Who wins: percentiles, the rule for one point, the rule for a coverage."""

import pytest

from aot.qualify.job import SpeedClaim
from aot.qualify.numerics import withheld
from aot.qualify.points import describe_point
from aot.qualify.winner import latency_of, speed_of, winner_of, winner_over
from aot.schema.artifact import Latency, Speed, Winner
from aot.schema.environment import Clocks


def steady(p50_us: float, spread: float = 0.01) -> Latency:
    return latency_of([p50_us * (1 + spread * step / 10) for step in range(-10, 11)])


def a_speed(eager_us: float, compiled_us: float, graphs_us: float | None = None) -> Speed:
    return speed_of({}, steady(eager_us), steady(compiled_us), None if graphs_us is None else steady(graphs_us))


def test_percentiles_are_linear_between_samples() -> None:
    found = latency_of([float(value) for value in range(1, 102)], peak_memory_bytes=7)
    assert (found.calls, found.p25_us, found.p50_us, found.p75_us, found.p90_us, found.p99_us) == (
        101, 26.0, 51.0, 76.0, 91.0, 100.0,
    )  # fmt: skip
    assert found.peak_memory_bytes == 7


def test_one_sample_is_every_percentile() -> None:
    found = latency_of([5.0])
    assert {found.p25_us, found.p50_us, found.p99_us} == {5.0}


@pytest.mark.parametrize(
    ("eager_us", "compiled_us", "spread", "winner"),
    [
        (100, 80, 0.01, Winner.COMPILED),
        (100, 102, 0.001, Winner.COMPILED),  # within 3 %
        (100, 110, 0.01, Winner.EAGER),
        (100, 110, 0.5, Winner.COMPILED),  # quartiles overlap: nothing is proven
    ],
)
def test_eager_wins_only_beyond_doubt(eager_us: float, compiled_us: float, spread: float, winner: Winner) -> None:
    assert winner_of(steady(eager_us, spread), steady(compiled_us, spread)) is winner


def test_a_coverage_is_compiled_where_nothing_was_measured() -> None:
    assert winner_over(()) is Winner.COMPILED


def test_a_coverage_is_eager_only_where_eager_wins_at_every_point() -> None:
    assert winner_over((a_speed(100, 50), a_speed(100, 110))) is Winner.COMPILED
    assert winner_over((a_speed(100, 99), a_speed(100, 120))) is Winner.COMPILED
    assert winner_over((a_speed(100, 105), a_speed(100, 120))) is Winner.EAGER


def test_slower_within_the_noise_everywhere_stays_compiled() -> None:
    assert winner_over((a_speed(100, 102), a_speed(100, 101))) is Winner.COMPILED


@pytest.mark.parametrize(
    ("eager_us", "compiled_us", "graphs_us", "winner"),
    [
        (100, 80, 50, Winner.GRAPHS),
        (100, 80, 79, Winner.COMPILED),  # within 3 %: a graph costs memory
        (100, 80, 95, Winner.COMPILED),
        (100, 150, 90, Winner.GRAPHS),  # without the graph eager would win
        (100, 150, 140, Winner.EAGER),
    ],
)
def test_a_graph_runs_where_it_is_faster_than_both(
    eager_us: float, compiled_us: float, graphs_us: float, winner: Winner
) -> None:
    speed = a_speed(eager_us, compiled_us, graphs_us)
    assert speed.winner is winner
    assert speed.ratio == pytest.approx((graphs_us if winner is Winner.GRAPHS else compiled_us) / eager_us, rel=0.02)


def test_a_coverage_runs_as_graphs_only_where_graphs_win_at_every_point() -> None:
    assert winner_over((a_speed(100, 80, 50), a_speed(100, 80, 60))) is Winner.GRAPHS
    assert winner_over((a_speed(100, 80, 50), a_speed(100, 80, 80))) is Winner.COMPILED


def test_a_graph_is_withheld_from_points_whose_replay_nobody_compared() -> None:
    speeds = [SpeedClaim(artifacts=(0,), speed=a_speed(100, 80, 50), graph_memory_bytes=5, clocks=Clocks(sm_mhz=1))]
    (kept,) = withheld(speeds, {((0,), describe_point({}))})
    assert kept.speed.winner is Winner.GRAPHS and kept.graph_memory_bytes == 5
    for replayed in (set(), {((1,), describe_point({}))}):
        (lost,) = withheld(speeds, replayed)
        assert (lost.speed.winner, lost.speed.graphs) == (Winner.COMPILED, None)
        assert (lost.graph_memory_bytes, lost.clocks) == (0, Clocks(sm_mhz=1))
