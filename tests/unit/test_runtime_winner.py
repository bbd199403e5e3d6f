"""Which side of a mixed proof a call follows: that of the measured point nearest to its sizes."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from aot.runtime import winner
from aot.runtime.winner import GRAPHS_FACT, asks_for_graphs, choose_of, nearest
from aot.schema.artifact import Speed, TensorMeta, Winner
from tests.builders import a_speed, an_artifact


def faster(**point: int) -> Speed:
    return a_speed(eager_us=200, compiled_us=100, point=point)


def slower(**point: int) -> Speed:
    return a_speed(eager_us=100, compiled_us=150, point=point)


def call(*shapes: tuple[int, ...]) -> Any:
    return [SimpleNamespace(shape=shape) for shape in shapes]


def inputs(*shapes: tuple[int | str, ...]) -> tuple[TensorMeta, ...]:
    return tuple(
        TensorMeta(path=f"args[{index}]", dtype="float32", shape=shape, stride=(1,) * len(shape))
        for index, shape in enumerate(shapes)
    )


def test_compiled_code_that_won_everywhere_costs_no_look_at_the_sizes() -> None:
    assert choose_of(an_artifact(speeds=(faster(batch=1), faster(batch=8)))) is None


def test_an_artifact_without_speeds_follows_its_recorded_winner() -> None:
    assert choose_of(an_artifact(speeds=())) is None
    always = choose_of(an_artifact(speeds=(), winner=Winner.EAGER))
    assert always is not None and always(call((4, 4))) is Winner.EAGER


@pytest.mark.parametrize(("batch", "eager"), [(1, False), (2, False), (3, True), (4, True), (8, True), (32, True)])
def test_a_call_follows_the_nearest_point(batch: int, eager: bool) -> None:
    # A convolution net that is faster compiled at batch 1 and slower from 4 on: between, ratios decide.
    artifact = an_artifact(
        speeds=(faster(batch=1), slower(batch=4), slower(batch=8)), inputs=inputs(("batch", 3, 8, 8))
    )
    choose = choose_of(artifact)
    assert choose is not None
    # Equally near to both, at batch 2, eager is taken.
    assert (choose(call((batch, 3, 8, 8))) is Winner.EAGER) is (eager or batch == 2)


def test_every_measured_point_is_followed_itself() -> None:
    speeds = (faster(b=1, s=2), slower(b=1, s=512), slower(b=64, s=2), faster(b=64, s=512), faster(b=2, s=3))
    artifact = an_artifact(speeds=speeds, inputs=inputs(("b", "s"), (4, "s")))
    choose = choose_of(artifact)
    assert choose is not None
    for speed in speeds:
        sizes = call((speed.point["b"], speed.point["s"]), (4, speed.point["s"]))
        assert choose(sizes) is speed.winner
        assert choose(sizes) is speed.winner  # as remembered, too


def test_a_dimension_that_no_input_shows_leaves_the_choice_to_the_others() -> None:
    speeds = (faster(batch=1, steps=1), slower(batch=8, steps=9))
    choose = choose_of(an_artifact(speeds=speeds, inputs=inputs(("batch", 4))))
    assert choose is not None
    assert choose(call((1, 4))) is Winner.COMPILED
    assert choose(call((8, 4))) is Winner.EAGER


def test_where_no_size_can_be_read_eager_is_taken() -> None:
    choose = choose_of(an_artifact(speeds=(faster(batch=1), slower(batch=8)), inputs=inputs((4, 4))))
    assert choose is not None and choose(call((4, 4))) is Winner.EAGER


def test_a_size_of_zero_is_nearest_to_the_smallest_point() -> None:
    assert nearest({"batch": 0}, (slower(batch=32), faster(batch=1))).point == {"batch": 1}


def test_decisions_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winner, "MOST_REMEMBERED", 2)
    looked: list[int] = []
    look = nearest

    def counted(sizes: Any, speeds: Any) -> Speed:
        looked.append(sizes["batch"])
        return look(sizes, speeds)

    monkeypatch.setattr(winner, "nearest", counted)
    choose = choose_of(an_artifact(speeds=(faster(batch=1), slower(batch=8)), inputs=inputs(("batch", 4))))
    assert choose is not None
    found = [choose(call((batch, 4))) is Winner.EAGER for batch in (1, 7, 6, 1, 7, 6)]
    assert found == [False, True, True, False, True, True]
    assert looked == [1, 7, 6, 6]


GRAPHS = {GRAPHS_FACT: "capture"}


def test_a_call_runs_as_a_graph_where_that_was_fastest() -> None:
    graphed = replace(faster(batch=1), winner=Winner.GRAPHS)
    speeds = (graphed, faster(batch=16), slower(batch=64))
    artifact = an_artifact(speeds=speeds, inputs=inputs(("batch", 4)), facts=GRAPHS)
    choose = choose_of(artifact)
    assert choose is not None and asks_for_graphs(artifact)
    assert [choose(call((batch, 4))) for batch in (1, 2, 16, 64)] == ["graphs", "graphs", "compiled", "eager"]


def test_graphs_are_asked_for_until_a_proof_says_otherwise() -> None:
    unproven = an_artifact(speeds=(), facts=GRAPHS)
    choose = choose_of(unproven)
    assert choose is not None and choose(call((1, 4))) is Winner.GRAPHS
    assert not asks_for_graphs(an_artifact(speeds=(faster(batch=1),), facts=GRAPHS))
    assert not asks_for_graphs(an_artifact(speeds=(), facts={}))
    assert choose_of(an_artifact(speeds=(), facts={})) is None
