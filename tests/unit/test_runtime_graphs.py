"""Which calls are replayed as CUDA graphs, and how a model tells of it; the card itself is in tests/gpu."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from aot.errors import LoadFailed, RunFailed
from aot.runtime.bind import Binder, _may_be_graphed
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.graphs import GraphReport, _replay, owner_of
from aot.runtime.unit import Bound, Form, Miss, Unit, Variant
from aot.runtime.winner import GRAPHS_FACT
from aot.schema.artifact import TensorMeta, Winner
from aot.schema.guard import InputGuard
from tests.builders import an_artifact


class Way:
    """Stands for a container and for its graphs: `run` says who ran."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, tensors: Any) -> Any:
        return self.name

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


def a_graphed_model() -> tuple[CompiledModel, Unit]:
    unit = a_unit(lambda tensors: Winner.GRAPHS, Way("graphs"))
    return CompiledModel(SimpleNamespace(), (unit,), fallback=Fallback.EAGER), unit  # type: ignore[arg-type]


def test_what_is_bound_anew_within_a_block_without_graphs_has_none_either() -> None:
    unit = a_unit(lambda tensors: Winner.GRAPHS, None)
    made: list[Way] = []

    def bind() -> Bound:
        made.append(Way("graphs"))
        (form,) = unit._bound.forms
        return Bound(forms=(Form(form.call, (msgspec.structs.replace(form.variants[0], graphs=made[-1]),)),))

    unit._bind = bind
    model = CompiledModel(SimpleNamespace(), (unit,), fallback=Fallback.EAGER)  # type: ignore[arg-type]
    with model.without_graphs():
        model.rebind()
        assert len(made) == 1 and unit.call((), {}) == "plain"
    assert unit.call((), {}) == "graphs"


def test_a_block_without_graphs_outlasts_those_that_end_within_it() -> None:
    model, unit = a_graphed_model()
    with model.without_graphs():
        with model.without_graphs():
            pass
        assert unit.call((), {}) == "plain"
        other = model.without_graphs()  # of another thread, say, that ends after this one
        other.__enter__()
    assert unit.call((), {}) == "plain"
    other.__exit__(None, None, None)
    assert unit.call((), {}) == "graphs"


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


def graphed(artifact: Any, space: Any = "space") -> tuple[Any, Opener]:
    opener = Opener(space)
    binder = Binder((artifact,), SimpleNamespace(), opener, SimpleNamespace())  # type: ignore[arg-type]
    return binder._graphed(0, artifact, "cuda:0", SimpleNamespace(), {}), opener  # type: ignore[arg-type]


def meta(*shape: int | str) -> TensorMeta:
    return TensorMeta(path="args[0]", dtype="float32", shape=shape, stride=(4, 1))


FACTS = {GRAPHS_FACT: "capture"}


def test_graphs_have_a_container_of_one_model_of_their_own() -> None:
    found, opener = graphed(an_artifact(facts=FACTS, speeds=(), inputs=(meta("batch", 4),)))
    assert found is not None and opener.opened == [1]


def on(device: str) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=device))


@pytest.mark.parametrize(
    ("artifact", "space"),
    [
        (an_artifact(facts={}, speeds=()), "space"),  # the mode asks for none
        (an_artifact(facts=FACTS, speeds=()), None),  # load(graphs=False), or no card
        (an_artifact(facts=FACTS, speeds=(), input_guards=(InputGuard(kind="apart", input=0),)), "space"),
        (an_artifact(facts=FACTS, speeds=(), input_guards=(InputGuard(kind="device", input=0, value="cpu"),)), "space"),
    ],
)
def test_no_graphs_where_a_replay_would_not_see_what_a_call_sees(artifact: Any, space: Any) -> None:
    found, opener = graphed(artifact, space)
    assert found is None and opener.opened == []


def test_a_constant_on_the_host_is_read_at_the_capture_alone_so_there_is_none() -> None:
    artifact = an_artifact(facts=FACTS, speeds=())
    assert _may_be_graphed(artifact, [on("cuda")])
    assert not _may_be_graphed(artifact, [on("cuda"), on("cpu")])


@pytest.mark.parametrize("error", [LoadFailed("no"), RuntimeError("CUDA out of memory")])
def test_what_fails_for_the_graphs_costs_the_graphs_alone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Opener):
        def space(self, device: str) -> Any:
            raise error

    artifact = an_artifact(facts=FACTS, speeds=())
    binder = Binder((artifact,), SimpleNamespace(), Full("space"), SimpleNamespace())  # type: ignore[arg-type]
    assert binder._find_graphs(0, artifact, "cuda:0", SimpleNamespace(), {}) is None  # type: ignore[arg-type]
    assert "no CUDA graphs" in caplog.text


def test_a_replay_without_memory_is_a_failed_run_that_eager_can_take_over() -> None:
    def replay(tensors: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate\nmore")

    with pytest.raises(RunFailed, match="out of memory"):
        _replay(SimpleNamespace(replay=replay), ())  # type: ignore[arg-type]


def test_a_result_is_the_callers_own_input_only_where_it_is_a_view_of_one() -> None:
    x, numbers, nothing = torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    inputs = [numbers, x, nothing]
    assert owner_of(x.t(), inputs) == 1
    assert owner_of(x[1:], inputs) == 1
    assert owner_of(torch.zeros(4, 4), inputs) is None
    assert owner_of(torch.zeros(0), inputs) is None  # nothing lies nowhere, as the empty input does
    assert owner_of(x.view(torch.int32), inputs) is None
