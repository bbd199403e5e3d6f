"""Capture and replay on a made-up card: whose results are, what is held, what a failed capture leaves behind."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aot.errors import InvalidInput, RunFailed
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.counters import Counters
from aot.runtime.graphs import Graphed, GraphOutputs, GraphSpace, memory_of
from aot.runtime.load import _Opener, _safe_outputs, load_bundle
from aot.runtime.pod import load
from aot.runtime.receipts import graph_counters
from aot.runtime.unit import Bound, Form, Unit, Variant
from aot.schema.artifact import Winner
from tests.builders import a_manifest, an_artifact

SEGMENT = 2 << 20


class Generator:
    """Random numbers of a card: whether their state is being captured, and how many it has given."""

    def __init__(self, given: int = 0) -> None:
        self.state = {"capturing": False, "given": given}

    def clone_state(self) -> "Generator":
        return Generator(self.state["given"])

    def graphsafe_set_state(self, other: "Generator") -> None:
        self.state = other.state


class Card:
    """What torch's allocator and a card keep of captures. A pool that records refuses the next capture, as torch's."""

    def __init__(self) -> None:
        self.pools = 0
        self.recording: set[tuple[int, int]] = set()
        self.users: dict[tuple[int, int], int] = {}
        self.bytes: dict[tuple[int, int], int] = {}
        self.capturing: Any = None
        self.ends_badly = False
        self.generator = Generator(given=7)
        self.launched: list[Any] = []  # what a replay of the graph being captured does

    def handle(self) -> tuple[int, int]:
        self.pools += 1
        return (0, self.pools)

    def end_allocating(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, device: int, pool: tuple[int, int]) -> None:
        self.users[pool] -= 1

    def segments(self, pool: tuple[int, int]) -> list[dict[str, int]]:
        return [{"total_size": self.bytes[pool]}] if pool in self.bytes else []


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    class Graph:
        def capture_begin(self, *, pool: tuple[int, int], capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            if pool in card.recording:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            card.recording.add(pool)
            card.users[pool] = card.users.get(pool, 0) + 1
            card.capturing, card.launched, self.pool = self, [], pool
            card.generator.state["capturing"] = True

        def capture_end(self) -> None:
            card.capturing = None
            if card.ends_badly:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            card.end_allocating(0, self.pool)
            card.generator.state["capturing"] = False
            card.bytes.setdefault(self.pool, SEGMENT)  # later graphs find room in the first one's
            self.steps = tuple(card.launched)

        def replay(self) -> None:
            for step in self.steps:
                step()

    quiet = SimpleNamespace(wait_event=lambda event: None, wait_stream=lambda stream: None)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    for name, fake in {
        "Stream": lambda device: quiet,
        "Event": lambda: event,
        "CUDAGraph": Graph,
        "graph_pool_handle": card.handle,
        "current_stream": lambda device: quiet,
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "memory_snapshot": card.segments,
        "default_generators": (card.generator,),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", card.end_allocating)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", card.release)
    return card


class Doubling:
    """A container whose program doubles its input, into memory of the graph where it is captured."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self.fails: BaseException | None = None

    def run_single_threaded(self, tensors: Any) -> Any:
        if self._card.capturing is None:
            return (tensors[0] * 2, None, tensors[0])
        if self.fails is not None:
            raise self.fails
        given, result = tensors[0], torch.zeros_like(tensors[0])
        self._card.launched.append(lambda: result.copy_(given * 2))
        return (result, None, given)

    def run(self, tensors: Any) -> Any:
        return ("plain", tensors[0] * 2)


def a_graphed(card: Card, outputs: GraphOutputs = GraphOutputs.COPIED, space: GraphSpace | None = None) -> Graphed:
    program = Doubling(card)
    return Graphed(program, program, space or GraphSpace("cpu", outputs=outputs), {})  # type: ignore[arg-type]


def captured(graphed: Graphed, *rows: int) -> Graphed:
    for count in rows:
        for _ in range(2):
            graphed.run((torch.ones(count, 4),))
    return graphed


def test_copied_results_are_the_callers_own(card: Card) -> None:
    graphed = captured(a_graphed(card), 3)
    first, nothing, given = graphed.run((x := torch.full((3, 4), 2.0),))
    graphed.run((torch.full((3, 4), 5.0),))
    assert torch.equal(first, torch.full((3, 4), 4.0))
    assert nothing is None and given.data_ptr() == x.data_ptr()


def test_static_results_are_not_copied_and_a_later_call_overwrites_them(card: Card) -> None:
    graphed = captured(a_graphed(card, GraphOutputs.STATIC), 3)
    first, _, given = graphed.run((x := torch.full((3, 4), 2.0),))
    assert torch.equal(first, torch.full((3, 4), 4.0)) and given.data_ptr() == x.data_ptr()
    first.unsqueeze_(0)  # of the caller's tensor, not of the graph's
    second, _, _ = graphed.run((torch.full((3, 4), 5.0),))
    assert second.shape == (3, 4) and second.data_ptr() == first.data_ptr()
    assert torch.equal(first[0], torch.full((3, 4), 10.0))


def test_regions_results_are_copied_whatever_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    whole, region = an_artifact(instances=("",)), an_artifact(instances=("layers.0", "layers.1"))
    assert _safe_outputs(GraphOutputs.STATIC, [whole]) is GraphOutputs.STATIC
    assert caplog.text == ""
    assert _safe_outputs(GraphOutputs.STATIC, [whole, region]) is GraphOutputs.COPIED
    assert "regions" in caplog.text
    assert _safe_outputs(None, [region]) is None


def test_the_graphs_of_one_model_and_card_share_a_space_that_gives_results_as_asked(card: Card) -> None:
    def opener(graphs: GraphOutputs | None) -> Any:
        return _Opener(a_manifest(), lambda file: None, lambda artifact: None, canary=False, graphs=graphs)  # type: ignore

    static = opener(GraphOutputs.STATIC)
    assert static.space("cuda:0").outputs is GraphOutputs.STATIC
    assert static.space("cuda:0") is static.space("cuda:0")
    assert static.space("cuda:1") is not static.space("cuda:0")
    assert static.space("cpu") is None and opener(None).space("cuda:0") is None


def test_outputs_of_another_name_are_refused_before_anything_is_looked_up() -> None:
    with pytest.raises(InvalidInput, match="copied or static"):
        load("team/net:v1", torch.nn.Linear(1, 1), graph_outputs="borrowed")


def test_a_fallback_of_another_name_is_refused_before_a_bundle_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="wanted the fallback eager or raise, found 'sometimes'"):
        load_bundle(tmp_path / "nowhere", torch.nn.Linear(1, 1), fallback="sometimes")


def test_memory_adds_up_over_graphs_that_share_a_pool(card: Card) -> None:
    graphed = captured(a_graphed(card), 3, 5)
    first, second = graphed.reports()
    assert (first.memory_bytes, second.memory_bytes) == (3 * 4 * 4 + SEGMENT, 5 * 4 * 4)
    assert memory_of([graphed]) == first.memory_bytes + second.memory_bytes


def test_a_pool_that_two_regions_share_counts_once(card: Card) -> None:
    one = captured(a_graphed(card), 3)
    other = captured(a_graphed(card, space=one.space), 3)
    assert memory_of([one, other]) == SEGMENT + 2 * 3 * 4 * 4
    assert [report.memory_bytes for report in other.reports()] == [3 * 4 * 4]


def test_an_allocator_that_does_not_tell_costs_the_figure_and_not_the_graph(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pool: Any) -> Any:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    (report,) = captured(a_graphed(card), 3).reports()
    assert (report.memory_bytes, report.reason) == (3 * 4 * 4, "")


def test_pools_of_captures_that_failed_are_forgotten_where_they_hold_nothing(card: Card) -> None:
    graphed = captured(a_graphed(card), 3)
    card.ends_badly = True
    captured(graphed, 4, 5, 6)
    assert len(graphed.space._pools) == 2
    assert memory_of([graphed]) == SEGMENT + 3 * 4 * 4


def test_a_receipt_tells_how_many_sizes_run_as_graphs_and_what_they_hold(card: Card) -> None:
    graphed = captured(a_graphed(card), 3)
    graphed._single.fails = RunFailed("cudaErrorStreamCaptureUnsupported")  # type: ignore[attr-defined]
    captured(graphed, 7)
    unit = SimpleNamespace(name="", graphs=(graphed,), is_compiled=True, reasons=())
    model = CompiledModel(torch.nn.Identity(), (unit,), fallback=Fallback.EAGER)  # type: ignore[arg-type]
    held = SEGMENT + 3 * 4 * 4
    assert graph_counters(model) == {"graphs": 1, "graphs_refused": 1, "graph_memory_bytes": held}
    assert graph_counters(CompiledModel(torch.nn.Identity(), (), fallback=Fallback.EAGER)) == {}


@pytest.mark.parametrize("ends_badly", [True, False], ids=["the end fails too", "the end succeeds"])
@pytest.mark.parametrize("error", [RunFailed("operation not permitted when stream is capturing"), RuntimeError("x\ny")])
def test_a_size_that_fails_in_its_capture_spoils_neither_its_call_nor_other_sizes(
    card: Card, error: Exception, ends_badly: bool
) -> None:
    graphed = captured(a_graphed(card), 3)
    before, state = graphed.space.pool, card.generator.state
    card.ends_badly, graphed._single.fails = ends_badly, error  # type: ignore[attr-defined]
    graphed.run((torch.ones(7, 4),))
    assert graphed.run((torch.ones(7, 4),))[0] == "plain"
    assert card.recording == set() and card.capturing is None
    assert card.generator.state == {"capturing": False, "given": 7}  # or no random number could be drawn any more
    if ends_badly:
        assert card.users[before] == 1  # the good graph's own
    # Graphs share one pool, and the random numbers of those before, for as long as nothing is wrong with them.
    assert (graphed.space.pool == before, card.generator.state is state) == (not ends_badly, not ends_badly)
    card.ends_badly, graphed._single.fails = False, None  # type: ignore[attr-defined]
    captured(graphed, 9)
    reports = {report.sizes[0][0]: report.reason for report in graphed.reports()}
    assert reports[3] == reports[9] == "" and reports[7].startswith("not captured: ")
    assert graphed.run((torch.full((9, 4), 3.0),))[0].tolist() == [[6.0] * 4] * 9


def test_a_capture_whose_end_alone_fails_is_undone_as_well(card: Card) -> None:
    graphed = a_graphed(card)
    card.ends_badly = True
    captured(graphed, 3)
    assert card.recording == set() and card.users[0, 1] == 0
    card.ends_badly = False
    assert captured(graphed, 4).reports()[0].reason == ""


def test_a_graph_that_fails_when_its_capture_has_ended_leaves_the_pool_to_the_others(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphed = captured(a_graphed(card), 3)
    end, before = torch.cuda.CUDAGraph.capture_end, graphed.space.pool

    def end_without_memory(graph: Any) -> None:
        end(graph)
        raise RuntimeError("CUDA error: out of memory")  # of cudaGraphInstantiate

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", end_without_memory)
    captured(graphed, 4)
    assert [report.reason for report in graphed.reports()] == ["", "not captured: CUDA error: out of memory"]
    assert (graphed.space.pool, card.users[before]) == (before, 2) and card.recording == set()


def test_an_interrupted_capture_is_undone_and_the_interrupt_passed_on(card: Card) -> None:
    graphed = a_graphed(card)
    graphed.run((torch.ones(3, 4),))
    card.ends_badly, graphed._single.fails = True, KeyboardInterrupt()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        graphed.run((torch.ones(3, 4),))
    assert card.recording == set()


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        raise AssertionError("ran eagerly")


class CountingProgram(Doubling):
    """Writes the module's buffer at each call, captured or not."""

    def __init__(self, card: Card, module: Counting) -> None:
        super().__init__(card)
        self._module = module

    def run_single_threaded(self, tensors: Any) -> Any:
        if self._card.capturing is None:
            self._module.calls += 1
        else:
            self._card.launched.append(lambda: self._module.calls.add_(1))
        return super().run_single_threaded(tensors)


def a_counting_model(card: Card, *, winner: Winner = Winner.GRAPHS) -> CompiledModel:
    module = Counting()
    program = CountingProgram(card, module)
    graphed = Graphed(program, program, GraphSpace("cpu"), {})  # type: ignore[arg-type]
    call = SimpleNamespace(flatten=lambda args, kwargs: list(args), unflatten=lambda outputs: outputs[0])
    variant = Variant("", lambda tensors: None, program, lambda tensors: winner, True, graphed)  # type: ignore[arg-type]
    bound = Bound(forms=(Form(call, (variant,)),))  # type: ignore[arg-type]
    counters = Counters()
    unit = Unit("", module, lambda: bound, counters)
    return CompiledModel(module, (unit,), fallback=Fallback.RAISE, counters=counters)


def test_sizes_are_captured_ahead_and_what_was_written_meanwhile_is_taken_back(card: Card) -> None:
    model = a_counting_model(card)
    reports = model.capture_graphs([(torch.ones(3, 4),), (torch.ones(5, 4),)])
    assert [report.sizes for report in reports[""]] == [((3, 4),), ((5, 4),)]
    assert model.module.calls.item() == 0 and model.counters["compiled"] == 4
    assert model(torch.full((3, 4), 2.0)).tolist() == [[4.0] * 4] * 3
    assert model.module.calls.item() == 1
    assert model.graphs == reports  # the first request of its size was replayed


class Region(torch.nn.Module):
    """One that counts its calls in a buffer, compiled or eagerly."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Regions(torch.nn.Module):
    """`graphed` and `plain` are compiled, `eager` is not."""

    def __init__(self) -> None:
        super().__init__()
        self.graphed, self.plain, self.eager = torch.nn.Identity(), Region(), Region()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.eager(self.plain(self.graphed(x)))


def test_ahead_what_other_regions_and_eager_parts_write_is_taken_back_as_well(card: Card) -> None:
    module, counters = Regions(), Counters()
    program, call = (
        Doubling(card),
        SimpleNamespace(flatten=lambda args, kwargs: list(args), unflatten=lambda one: one[0]),
    )
    graphed = Graphed(program, program, GraphSpace("cpu"), {})  # type: ignore[arg-type]
    plain = SimpleNamespace(run=lambda tensors: (module.plain.calls.add_(1), tensors[0])[1:])

    def unit(name: str, variant: Variant) -> Unit:
        bound = Bound(forms=(Form(call, (variant,)),))  # type: ignore[arg-type]
        return Unit(name, getattr(module, name), lambda: bound, counters)

    units = (
        unit("graphed", Variant("", lambda tensors: None, program, lambda tensors: Winner.GRAPHS, False, graphed)),  # type: ignore[arg-type]
        unit("plain", Variant("", lambda tensors: None, plain, None, True)),  # type: ignore[arg-type]
    )
    model = CompiledModel(module, units, fallback=Fallback.RAISE, counters=counters)
    (report,) = model.capture_graphs([(torch.ones(3, 4),)])["graphed"]
    assert report.reason == "" and model.counters["compiled"] == 4
    assert [one.item() for one in module.buffers()] == [0, 0]
    model(torch.ones(3, 4))
    assert [one.item() for one in module.buffers()] == [1, 1]


def test_what_fails_ahead_leaves_the_buffers_as_they_were(card: Card) -> None:
    model = a_counting_model(card)
    with pytest.raises(TypeError):
        model.capture_graphs([(torch.ones(3, 4),), 5])  # type: ignore[list-item]
    assert model.module.calls.item() == 0


def test_ahead_nothing_is_captured_where_a_graph_did_not_win_and_nothing_is_called_where_there_are_none(
    card: Card,
) -> None:
    model = a_counting_model(card, winner=Winner.COMPILED)
    assert model.capture_graphs([(torch.ones(3, 4),)]) == {"": ()}
    assert model.counters["compiled"] == 2
    eager = CompiledModel(Counting(), (), fallback=Fallback.EAGER)
    assert eager.capture_graphs([(torch.ones(3, 4),)]) == {}
