"""`Container` on a GPU: streams, graphs and memory, which the CPU tests cannot see."""

import gc
import inspect

import pytest
import torch

from aot.errors import RunFailed
from aot.runtime.binding import BindingPlan, plan_binding
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from tests.integration.runtime_builds import Program, built_program, inputs, seeded_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
]

OUT, AGAIN, NOTHING, ROWS, HIDDEN, GIVEN = range(6)


def on_gpu(rows: int, *, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.cuda() for tensor in inputs(rows, seed=seed))


def plan(container: Container, program: Program) -> BindingPlan:
    build = built_program("cuda")
    found = plan_binding(
        container.constants, program, constants=build.constants, lifted=build.lifted, device=container.device
    )
    assert isinstance(found, BindingPlan), found
    return found


def opened(program: Program | None = None, *, num_models: int | None = None) -> Container:
    container = Container.open(built_program("cuda").shared_object, device="cuda", num_models=num_models)
    if program is not None:
        container.bind(plan(container, program).tensors)
    return container


def test_a_run_agrees_with_eager_over_calls_and_sizes() -> None:
    program, eager = seeded_program(1).cuda(), seeded_program(1).cuda()
    container = opened(program)
    call = bind_call(built_program("cuda").call, inspect.signature(program.forward))
    for turn, rows in enumerate((1, 3, 64)):
        case = on_gpu(rows, seed=turn)
        out, others = call.unflatten(container.run(call.flatten(case, {})))
        wanted, wanted_others = eager(*case)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(others["hidden"], wanted_others["hidden"])
        assert (others["rows"], others["nothing"]) == (rows, None)
    torch.testing.assert_close(program.running, eager.running)


def test_a_run_is_ordered_on_the_callers_stream() -> None:
    program = seeded_program(0).cuda()
    container, (x, y) = opened(program), on_gpu(64)
    wanted = torch.relu(program.first(x) + y)
    late, side = torch.zeros_like(x), torch.cuda.Stream()
    container.run((late, y))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # on any other stream the run would see zeros
        late.copy_(x)
        hidden = container.run((late, y))[HIDDEN]
    side.synchronize()
    torch.testing.assert_close(hidden, wanted)


def test_a_single_threaded_run_is_captured_into_a_graph() -> None:
    program = seeded_program(0).cuda()
    container, (x, y) = opened(program, num_models=1), on_gpu(8)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        container.run_single_threaded((x, y))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = container.run_single_threaded((x, y))[HIDDEN]
    other = on_gpu(8, seed=9)
    x.copy_(other[0])
    y.copy_(other[1])
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(hidden, torch.relu(program.first(x) + y))


def test_binding_copies_nothing_and_lets_go() -> None:
    container, program = opened(), seeded_program(0).cuda()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        storage = torch.zeros(16 << 20, device="cuda")  # 64 MB behind one small weight
        program.first.weight = torch.nn.Parameter(storage[:512].view(32, 16), requires_grad=False)
        with_storage = torch.cuda.memory_allocated()
        container.bind(plan(container, program).tensors)
        assert torch.cuda.memory_allocated() <= with_storage
        container.run(on_gpu(2))
        del storage
    assert torch.cuda.memory_allocated() - before < 80 << 20


def test_memory_stays_flat_over_calls() -> None:
    container, case = opened(seeded_program(0).cuda()), on_gpu(8)
    container.run(case)
    gc.collect()  # what other tests have left in cycles is not given back in between
    before = torch.cuda.memory_allocated()
    for _ in range(2000):
        container.run(case)
    assert torch.cuda.memory_allocated() == before


def test_a_failure_is_an_exception_and_the_next_call_works() -> None:
    container, (x, y) = opened(seeded_program(0).cuda(), num_models=1), on_gpu(3)
    for _ in range(3):
        with pytest.raises(RunFailed):
            container.run((x.double(), y))
    assert container.run((x, y))[OUT].shape == (3, 4)
