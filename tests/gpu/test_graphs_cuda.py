"""`Graphed` on a card: replays agree with eager, results are the caller's own, state is written once a call."""

import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aot.runtime import graphs as graphs_module
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from aot.runtime.graphs import Graphed, GraphOutputs, GraphSpace, memory_of
from tests.gpu.test_runtime_container import HIDDEN, on_gpu, opened, plan
from tests.integration.runtime_builds import Program, built_program, seeded_program

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def graphed(program: Program, space: GraphSpace | None = None) -> Graphed:
    plain = opened(program)
    single = Container.open(built_program("cuda").shared_object, device="cuda", num_models=1)
    tensors = plan(single, program).tensors
    single.bind(tensors)
    return Graphed(single, plain, space or GraphSpace(plain.device), tensors)


def caller(program: Program, runner: Graphed) -> Callable[..., Any]:
    call = bind_call(built_program("cuda").call, inspect.signature(program.forward))
    return lambda *args: call.unflatten(runner.run(call.flatten(args, {})))


def test_replays_agree_with_eager_and_write_once_a_call() -> None:
    program, eager = seeded_program(1).cuda(), seeded_program(1).cuda()
    runner = graphed(program)
    run = caller(program, runner)
    for turn, rows in enumerate((1, 3, 64, 3, 1, 64, 3, 1, 64, 2)):
        case = on_gpu(rows, seed=turn)
        out, others = run(*case)
        wanted, wanted_others = eager(*case)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(others["hidden"], wanted_others["hidden"])
        assert others["given"].data_ptr() == case[0].data_ptr()  # the caller's own input, as eagerly
    torch.testing.assert_close(program.running, eager.running)
    assert program.calls == eager.calls == 10
    captured = {report.sizes[0][0]: report for report in runner.reports()}
    assert sorted(captured) == [1, 3, 64]  # 2 rows came once
    assert not any(report.reason for report in captured.values())


def test_a_graph_that_was_captured_in_inference_mode_is_replayed_outside_of_it() -> None:
    program = seeded_program(0).cuda()
    runner = graphed(program)
    case = on_gpu(4)
    with torch.inference_mode():
        for _ in range(3):
            runner.run(case)
    with torch.no_grad():
        hidden = runner.run(case)[HIDDEN]
    torch.testing.assert_close(hidden, torch.relu(program.first(case[0]) + case[1]))


def test_results_are_the_callers_own() -> None:
    program = seeded_program(0).cuda()
    run = caller(program, graphed(program))
    first, others = [run(*on_gpu(8, seed=0)) for _ in range(3)][-1]
    kept, kept_hidden = first.clone(), others["hidden"].clone()
    for seed in range(1, 4):
        run(*on_gpu(8, seed=seed))
    assert torch.equal(first, kept) and torch.equal(others["hidden"], kept_hidden)


def test_weights_written_in_place_are_seen_by_a_graph() -> None:
    program = seeded_program(0).cuda()
    run = caller(program, graphed(program))
    case = on_gpu(4)
    for _ in range(3):
        run(*case)
    program.load_state_dict(seeded_program(7).cuda().state_dict())
    _, others = run(*case)
    torch.testing.assert_close(others["hidden"], torch.relu(program.first(case[0]) + case[1]))


def test_replays_on_two_streams_do_not_mix() -> None:
    program = seeded_program(0).cuda()
    run = caller(program, graphed(program))
    cases = [on_gpu(64, seed=seed) for seed in range(2)]
    wanted = [torch.relu(program.first(x) + y) for x, y in cases]
    for _ in range(2):
        run(*cases[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in cases]
    for _ in range(50):
        found = []
        for stream, case in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                found.append(run(*case)[1]["hidden"])
        torch.cuda.synchronize()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_sizes_beyond_the_bound_run_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 2)
    program = seeded_program(0).cuda()
    runner = graphed(program)
    run = caller(program, runner)
    for rows in (1, 2, 3, 4):
        for _ in range(3):
            _, others = run(*on_gpu(rows))
            assert others["hidden"].shape[0] == rows
    assert len(runner.reports()) == 2


def test_an_expanded_input_is_refused_with_its_reason_and_runs() -> None:
    program = seeded_program(0).cuda()
    runner = graphed(program)
    x, y = on_gpu(4)
    spread = y[:1].expand(4, 32)
    for _ in range(3):
        assert runner.run((x, spread.contiguous()))[0].shape == (4, 4)
    runner = graphed(program)
    for _ in range(3):
        runner.run((x, spread))
    (report,) = runner.reports()
    assert "expanded" in report.reason


def test_inside_the_callers_own_graph_it_is_captured_with_it() -> None:
    program = seeded_program(0).cuda()
    runner = graphed(program)
    x, y = on_gpu(8)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            runner.run((x, y))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = runner.run((x, y))[3 + 1]
    other = on_gpu(8, seed=9)
    x.copy_(other[0])
    y.copy_(other[1])
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(hidden, torch.relu(program.first(x) + y))


def test_static_results_lie_in_the_graph_and_are_overwritten() -> None:
    program = seeded_program(0).cuda()
    runner = graphed(program, GraphSpace("cuda:0", outputs=GraphOutputs.STATIC))
    for seed in range(2):
        runner.run(on_gpu(8, seed=seed))
    x, y = on_gpu(8, seed=5)
    gc.collect()  # what other tests have left in cycles is not given back in between
    before = torch.cuda.memory_allocated()
    first = runner.run((x, y))[HIDDEN]
    assert torch.cuda.memory_allocated() == before  # nothing was copied
    torch.testing.assert_close(first, torch.relu(program.first(x) + y))
    x, y = on_gpu(8, seed=6)
    assert runner.run((x, y))[HIDDEN].data_ptr() == first.data_ptr()
    torch.testing.assert_close(first, torch.relu(program.first(x) + y))


class Synchronizing:
    """A program that waits for the card within its run, which a capture forbids."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.waits = True

    def run_single_threaded(self, tensors: Any) -> Any:
        outputs = self._container.run_single_threaded(tensors)
        if self.waits:
            torch.cuda.current_stream().synchronize()
        return outputs


def test_what_the_card_refuses_runs_without_a_graph_and_spoils_no_other_size() -> None:
    program, eager = seeded_program(1).cuda(), seeded_program(1).cuda()
    runner = graphed(program)
    runner._single = synchronizing = Synchronizing(runner._single)  # type: ignore[assignment]
    run = caller(program, runner)
    for turn in range(3):
        case = on_gpu(8, seed=turn)
        torch.testing.assert_close(run(*case)[0], eager(*case)[0])
    synchronizing.waits = False
    for turn in range(3):
        case = on_gpu(4, seed=turn)
        torch.testing.assert_close(run(*case)[0], eager(*case)[0])
    reasons = {report.sizes[0][0]: report.reason for report in runner.reports()}
    assert reasons[8].startswith("not captured: ") and reasons[4] == ""
    # The allocator is not left in the middle of a capture: another one begins and ends, and memory is given back.
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
    with torch.cuda.graph(graph):
        doubled = x * 2
    graph.replay()
    assert doubled.tolist() == [2.0] * 8
    # Nor is the generator, of which torch says that it is being captured: not here, nor in later captures.
    assert torch.randn(8, device="cuda").isfinite().all()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        noise = torch.randn(8, device="cuda")
    assert noise.shape == torch.randn(8, device="cuda").shape


def test_memory_is_reported_and_given_back() -> None:
    program = seeded_program(0).cuda()
    torch.cuda.synchronize()
    gc.collect()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    runner = graphed(program)
    inputs_bytes = 0
    for rows in (64, 32):
        for _ in range(3):
            runner.run(on_gpu(rows))
        inputs_bytes += sum(tensor.untyped_storage().nbytes() for tensor in on_gpu(rows))
    reports = runner.reports()
    pool_bytes = runner.space.pool_bytes()
    assert sum(report.memory_bytes for report in reports) == memory_of([runner]) == inputs_bytes + pool_bytes
    assert pool_bytes >= 64 * 32 * 4  # `hidden` at least
    assert torch.cuda.memory_reserved() - reserved >= pool_bytes
    del runner
    torch.cuda.synchronize()
    # A stream of its own has a cuBLAS workspace of its own, 32 MiB on this card, which torch keeps.
    assert torch.cuda.memory_allocated() - before < 40 << 20
