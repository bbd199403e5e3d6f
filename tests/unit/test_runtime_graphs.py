"""Which calls are replayed as CUDA graphs, and how a model tells of it; the card itself is in tests/gpu."""

from types import SimpleNamespace
from typing import Any

import pytest

from aot.runtime import bind
from aot.runtime.bind import Binder
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.graphs import GraphReport
from aot.runtime.unit import Form, Miss, Unit, Variant
from aot.runtime.winner import GRAPHS_FACT
from aot.schema.artifact import TensorMeta, Winner
from aot.schema.guard import InputGuard
from tests.builders import an_artifact


class Way:
    """Stands for a container and for its graphs: `run` says who ran."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enabled = True

    def run(self, tensors: Any) -> Any:
        return self.name if self.enabled else "plain"

    def reports(self) -> tuple[GraphReport, ...]:
        return (GraphReport(((4, 4),), memory_bytes=1 << 20), GraphReport(((8, 4),), reason="not captured: no"))


def a_unit(choose: Any, graphs: Way | None) -> Unit:
    from aot.runtime.counters import Counters
    from aot.runtime.unit import Bound

    call = SimpleNamespace(flatten=lambda args, kwargs: list(args), unflatten=lambda outputs: outputs)
    variant = Variant("", lambda tensors: None, Way("plain"), choose, False, graphs)  # type: ignore[arg-type]
    bound = Bound(forms=(Form(call, (variant,)),))  # type: ignore[arg-type]
    return Unit("", SimpleNamespace(), lambda: bound, Counters())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("winner", "graphs", "who"),
    [
        (Winner.GRAPHS, Way("graphs"), "graphs"),
        (Winner.GRAPHS, None, "plain"),  # loaded without graphs: compiled code all the same
        (Winner.COMPILED, Way("graphs"), "plain"),
    ],
)
def test_a_call_takes_the_way_that_won(winner: Winner, graphs: Way | None, who: str) -> None:
    assert a_unit(lambda tensors: winner, graphs).call((), {}) == who


def test_where_eager_won_nothing_of_ours_runs() -> None:
    assert isinstance(a_unit(lambda tensors: Winner.EAGER, Way("graphs")).call((), {}), Miss)


def test_a_model_tells_what_was_captured_and_what_was_refused() -> None:
    unit = a_unit(lambda tensors: Winner.GRAPHS, Way("graphs"))
    model = CompiledModel(SimpleNamespace(), (unit,), fallback=Fallback.EAGER)  # type: ignore[arg-type]
    assert [(report.memory_bytes, report.reason) for report in model.graphs[""]] == [
        (1 << 20, ""),
        (0, "not captured: no"),
    ]
    with model.without_graphs():
        assert unit.call((), {}) == "plain"
    assert unit.call((), {}) == "graphs"
    plain = CompiledModel(SimpleNamespace(), (a_unit(None, None),), fallback=Fallback.EAGER)  # type: ignore[arg-type]
    assert plain.graphs == {}


class Opener:
    """Opens nothing: says which containers were wanted."""

    def __init__(self, space: Any) -> None:
        self.opened: list[int | None] = []
        self._space = space

    def space(self, device: str) -> Any:
        return self._space

    def open(self, artifact: Any, device: str, *, num_models: int | None = None) -> Any:
        self.opened.append(num_models)
        return SimpleNamespace(constants=(), bind=lambda tensors: None)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(bind.Graphed, "prepare", lambda self, inputs: found.append(inputs))
    return found


def graphed(artifact: Any, space: Any = "space") -> tuple[Any, Opener]:
    opener = Opener(space)
    binder = Binder((artifact,), SimpleNamespace(), opener, SimpleNamespace())  # type: ignore[arg-type]
    return binder._graphed(0, artifact, "cuda:0", SimpleNamespace(), {}), opener  # type: ignore[arg-type]


def meta(*shape: int | str) -> TensorMeta:
    return TensorMeta(path="args[0]", dtype="float32", shape=shape, stride=(4, 1))


FACTS = {GRAPHS_FACT: "capture"}


def test_graphs_have_a_container_of_one_model_of_their_own(prepared: list[Any]) -> None:
    found, opener = graphed(an_artifact(facts=FACTS, speeds=(), inputs=(meta("batch", 4),)))
    assert found is not None and opener.opened == [1]
    assert prepared == []  # a range is captured size by size, as calls come


def test_one_size_is_captured_at_load(prepared: list[Any]) -> None:
    graphed(an_artifact(facts=FACTS, speeds=(), inputs=(meta(8, 4),)))
    assert prepared == [(meta(8, 4),)]


@pytest.mark.parametrize(
    ("artifact", "space"),
    [
        (an_artifact(facts={}, speeds=()), "space"),  # the mode asks for none
        (an_artifact(facts=FACTS, speeds=()), None),  # load(graphs=False), or no card
        (an_artifact(facts=FACTS, speeds=(), input_guards=(InputGuard(kind="apart", input=0),)), "space"),
    ],
)
def test_no_graphs_where_none_are_wanted_or_an_input_is_written_into(artifact: Any, space: Any) -> None:
    found, opener = graphed(artifact, space)
    assert found is None and opener.opened == []
