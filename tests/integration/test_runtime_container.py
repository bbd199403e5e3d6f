"""`Container` on a real shared object: what the C interface does not check or hand over must not reach the caller."""

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from aot.errors import BindingFailed, LoadFailed, RunFailed
from aot.runtime import container as container_module
from aot.runtime.binding import BindingPlan, plan_binding
from aot.runtime.calling import bind_call
from aot.runtime.container import Container
from aot.runtime.slots import ConstantSlot
from aot.schema.artifact import ConstantKind
from tests.integration.runtime_builds import Program, built_program, inputs, seeded_program

pytestmark = pytest.mark.torch

OUT, AGAIN, NOTHING, ROWS, HIDDEN, GIVEN = range(6)


def tensors_of(program: Program) -> dict[str, torch.Tensor]:
    return {**program.state_dict(keep_vars=True), **built_program().lifted}


def opened(program: Program | None = None, *, num_models: int | None = None) -> Container:
    container = Container.open(built_program().shared_object, device="cpu", num_models=num_models)
    if program is not None:
        container.bind(tensors_of(program))
    return container


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_slots_name_what_the_object_asks_for() -> None:
    container = opened()
    assert (container.num_inputs, container.num_outputs) == (2, 6)
    assert {slot.fqn for slot in container.constants} == set(tensors_of(seeded_program(0)))
    assert container.constants[0] == ConstantSlot(
        name="first_weight",
        fqn="first.weight",
        kind=ConstantKind.PARAMETER,
        dtype="float32",
        storage_bytes=32 * 16 * 4,
        folded=False,
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_uses_the_bound_weights_and_writes_the_bound_buffers(seed: int) -> None:
    program, eager = seeded_program(seed), seeded_program(seed)
    container = opened(program)
    for call in range(3):
        x, y = inputs(1 + call, seed=call)
        outputs, (out, others) = container.run((x, y)), eager(x, y)
        torch.testing.assert_close(outputs[OUT], out)
        torch.testing.assert_close(outputs[HIDDEN], others["hidden"])
        assert outputs[ROWS].item() == others["rows"]
    assert program.calls == eager.calls == 3
    torch.testing.assert_close(program.running, eager.running)


def test_outputs_may_be_none_one_another_or_an_input() -> None:
    container = opened(seeded_program(0), num_models=1)
    for _ in range(50):  # a handle taken over twice would be freed twice
        x, y = inputs(4)
        outputs = container.run((x, y))
        assert outputs[NOTHING] is None
        assert outputs[AGAIN] is outputs[OUT]
        assert outputs[GIVEN] is x


def test_a_write_into_a_weight_is_seen_by_the_next_run() -> None:
    program = seeded_program(0)
    container, (x, y) = opened(program), inputs(3)
    before = container.run((x, y))[HIDDEN]
    program.first.weight.mul_(2)
    after = container.run((x, y))[HIDDEN]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, torch.relu(program.first(x) + y))


def test_containers_of_one_object_have_their_own_weights() -> None:
    x, y = inputs(3)
    programs = [seeded_program(seed) for seed in range(3)]
    containers = [opened(program) for program in programs]
    for program, container in zip(programs, containers, strict=True):
        torch.testing.assert_close(container.run((x, y))[HIDDEN], torch.relu(program.first(x) + y))


def test_an_unbound_container_refuses_to_run() -> None:
    container = opened()
    for _ in range(2):
        with pytest.raises(RunFailed, match="no tensors are bound"):
            container.run(inputs(3))
    container.bind(tensors_of(seeded_program(0)))
    assert container.run(inputs(3))[OUT].shape == (3, 4)


def test_a_closed_container_refuses_to_run_and_to_bind() -> None:
    container = opened(seeded_program(0))
    container.close()
    container.close()
    with pytest.raises(RunFailed, match="closed"):
        container.run(inputs(3))
    with pytest.raises(BindingFailed, match="closed"):
        container.bind(tensors_of(seeded_program(0)))


def test_binding_names_every_misfit_and_keeps_the_earlier_binding() -> None:
    program = seeded_program(0)
    container, (x, y) = opened(program), inputs(3)
    wrong = {**tensors_of(seeded_program(1)), "extra": torch.zeros(1)}
    del wrong["first.bias"]
    wrong["running"] = wrong["running"].double()
    with pytest.raises(BindingFailed) as caught:
        container.bind(wrong)
    assert caught.value.details["reasons"] == (
        "first.bias: missing",
        "extra: the artifact does not ask for it",
        "running: wanted dtype float32, found float64",
    )
    torch.testing.assert_close(container.run((x, y))[HIDDEN], torch.relu(program.first(x) + y))


@pytest.mark.parametrize("arguments", [(), inputs(3)[:1], (*inputs(3), torch.zeros(1))])
def test_another_number_of_inputs_is_refused(arguments: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(RunFailed, match=f"wanted 2 input tensor\\(s\\), found {len(arguments)}"):
        opened(seeded_program(0)).run(arguments)


def test_inputs_that_are_no_tensors_are_refused_without_their_values() -> None:
    with pytest.raises(RunFailed, match="found Tensor, int") as caught:
        opened(seeded_program(0)).run((inputs(3)[0], 12345))
    assert caught.value.__suppress_context__


def test_a_failure_inside_the_object_is_an_exception_that_says_why_and_frees_the_model() -> None:
    container, (x, y) = opened(seeded_program(0), num_models=1), inputs(3)
    has_text = hasattr(ctypes.CDLL(str(built_program().shared_object)), "AOTInductorGetLastError")
    wanted = r"addmm_out: .*same dtype, but got Double and Float" if has_text else "printed on this process's stderr"
    for _ in range(5):
        with pytest.raises(RunFailed, match=wanted) as caught:
            container.run((x.double(), y))
        assert "/" not in caught.value.message
    assert container.run((x, y))[OUT].shape == (3, 4)


def test_failures_do_not_block_threads_that_wait_for_a_model() -> None:
    # Inside the object they would: it wakes nobody when a run throws.
    container, (x, y) = opened(seeded_program(0), num_models=1), inputs(3)

    def one(index: int) -> bool:
        try:
            return container.run((x.double() if index % 2 else x, y))[OUT].shape == (3, 4)
        except RunFailed:
            return False

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(one, range(400), timeout=120))
    assert outcomes == [index % 2 == 0 for index in range(400)]


@pytest.mark.parametrize("num_models", [1, 2, None])
def test_threads_at_once_get_the_results_of_one_thread(num_models: int | None) -> None:
    program = seeded_program(0)
    container = opened(program, num_models=num_models)
    cases = [inputs(1 + seed % 9, seed=seed) for seed in range(300)]
    wanted = [torch.relu(program.first(x) + y) for x, y in cases]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda case: container.run(case)[HIDDEN], cases, timeout=120))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_releases_the_gil() -> None:
    container, (x, y) = opened(seeded_program(0)), inputs(200_000)
    spans: SimpleQueue[tuple[float, float]] = SimpleQueue()

    def long_run() -> None:
        container.run((x, y))  # warm
        start = time.perf_counter()
        container.run((x, y))
        spans.put((start, time.perf_counter()))

    thread, ticks = threading.Thread(target=long_run), []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0)
    start, end = spans.get()
    # Python here got on with its work while machine code ran there; with the GIL held there were no ticks at all.
    middle = (end - start) / 4
    assert sum(start + middle < tick < end - middle for tick in ticks) > 10


def test_binding_again_under_load_gives_one_binding_or_the_other() -> None:
    (x, y), stop = inputs(4), threading.Event()
    programs = [seeded_program(1), seeded_program(2)]
    answers = [torch.relu(program.first(x) + y) for program in programs]
    container = opened(programs[0])

    def load() -> int:
        calls = 0
        while not stop.is_set():
            found = container.run((x, y))[HIDDEN]
            assert any(torch.allclose(found, answer, atol=1e-5) for answer in answers)
            calls += 1
        return calls

    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load) for _ in range(3)]
        for turn in range(200):
            container.bind(tensors_of(programs[turn % 2]))
        stop.set()
        assert all(one.result(timeout=60) > 0 for one in loads)
    torch.testing.assert_close(container.run((x, y))[HIDDEN], answers[1])


def test_closing_waits_for_runs_in_flight() -> None:
    for _ in range(20):
        container, case = opened(seeded_program(0), num_models=2), inputs(2000)
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(container.run, case) for _ in range(6)]
            container.close()
        for run in runs:
            error = run.exception(timeout=60)
            assert error is None or "closed" in str(error)


def test_memory_stays_flat_over_five_thousand_calls() -> None:
    container, case = opened(seeded_program(0)), inputs(8)
    for _ in range(1000):
        container.run(case)
    before = resident_bytes()
    for _ in range(5000):
        container.run(case)
    assert resident_bytes() - before < 1 << 20  # one leaked handle a call would be 3 MB with its tensor


def test_memory_stays_flat_over_failing_calls() -> None:
    container, (x, y) = opened(seeded_program(0)), inputs(8)
    before = 0
    for turn in range(1500):
        with pytest.raises(RunFailed):
            container.run((x.double(), y))
        if turn == 500:
            before = resident_bytes()
    assert resident_bytes() - before < 1 << 20


@pytest.mark.parametrize("how", ["bind", "close", "forget"])
def test_bound_tensors_are_let_go(how: str) -> None:
    def large() -> dict[str, torch.Tensor]:
        tensors = tensors_of(seeded_program(0))
        storage = torch.zeros(16 << 20)  # 64 MB behind one small weight
        return {**tensors, "first.weight": storage[:512].view(32, 16)}

    container = opened()
    before = resident_bytes()
    for _ in range(6):
        container.bind(large())
        assert container.run(inputs(2))[OUT].shape == (2, 4)
        if how == "close":
            container.close()
        if how != "bind":
            container = opened()
    gc.collect()
    # The object itself never frees what it was lent: six of these were 384 MB.
    assert resident_bytes() - before < 160 << 20


def test_bound_tensors_outlive_the_module() -> None:
    container, (x, y) = opened(), inputs(3)
    program = seeded_program(5)
    container.bind(tensors_of(program))
    wanted = torch.relu(program.first(x) + y)
    del program
    gc.collect()
    torch.testing.assert_close(container.run((x, y))[HIDDEN], wanted)


def test_a_bound_parameter_stays_usable_after_close() -> None:
    program = seeded_program(0)
    container = opened(program)
    container.close()
    assert program.first.weight.shape == (32, 16)
    assert program(*inputs(2))[0].shape == (2, 4)


def test_a_planned_binding_follows_a_replaced_weight() -> None:
    build, program, (x, y) = built_program(), seeded_program(0), inputs(3)
    container, call = opened(), bind_call(build.call, build.signature)

    def plan() -> BindingPlan:
        found = plan_binding(
            container.constants, program, constants=build.constants, lifted=build.lifted, device=container.device
        )
        assert isinstance(found, BindingPlan)
        return found

    container.bind(plan().tensors)
    program.load_state_dict(seeded_program(7).state_dict(), assign=True)
    container.bind(plan().tensors)
    found = call.unflatten(container.run(call.flatten((x,), {"y": y, "scale": 2.0})))
    torch.testing.assert_close(found, seeded_program(7)(x, y))
    assert type(found[1]["rows"]) is int
    assert call.flatten((x, y), {"scale": 3.0}) == "scale: wanted 2.0, found 3.0"


def test_a_single_threaded_run_gives_the_same_result() -> None:
    container, (x, y) = opened(seeded_program(0), num_models=1), inputs(3)
    outputs = container.run_single_threaded((x, y))
    torch.testing.assert_close(outputs[OUT], seeded_program(0)(x, y)[0])


def test_the_two_ways_to_run_do_not_mix() -> None:
    container = opened(seeded_program(0), num_models=1)
    container.run(inputs(3))
    with pytest.raises(RunFailed, match="single-threaded"):
        container.run_single_threaded(inputs(3))
    container = opened(seeded_program(0), num_models=1)
    container.run_single_threaded(inputs(3))
    assert container.run(inputs(3))[OUT].shape == (3, 4)


def test_every_run_is_given_the_stream_of_its_caller() -> None:
    container, given = opened(seeded_program(0), num_models=1), []
    streams = iter([None, 7, 7, 0, 1 << 40])
    container._stream_of = lambda: next(streams)  # type: ignore[assignment, return-value]

    def fail(*arguments: object) -> int:
        given.append(str(arguments[5]))
        return 1

    container._run = fail
    for _ in range(5):
        with pytest.raises(RunFailed):
            container.run(inputs(3))
    assert given == [str(ctypes.c_void_p.from_param(one)) for one in (None, 7, 7, 0, 1 << 40)]


def test_an_interrupt_while_a_stream_changes_leaves_no_call_on_the_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    container, given = opened(seeded_program(0), num_models=1), []
    prepare = container_module.run_arguments

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(container_module, "run_arguments", prepare)
        raise KeyboardInterrupt

    def fail(*arguments: object) -> int:
        given.append(str(arguments[5]))
        return 1

    container._stream_of, container._run = lambda: 7, fail
    monkeypatch.setattr(container_module, "run_arguments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        container.run(inputs(3))
    with pytest.raises(RunFailed):
        container.run(inputs(3))
    assert given == [str(ctypes.c_void_p.from_param(7))]


def test_inference_mode_and_inference_tensors_work() -> None:
    with torch.inference_mode():
        program = seeded_program(0)
    container = opened(program)
    with torch.inference_mode():
        assert container.run(inputs(3))[OUT].shape == (3, 4)
    container.close()


def test_what_is_no_shared_object_fails_to_load(tmp_path: Path) -> None:
    (tmp_path / "cut.so").write_bytes(built_program().shared_object.read_bytes()[:100])
    (tmp_path / "text.so").write_text("not a shared object" * 100)
    for name in ("cut.so", "text.so", "absent.so"):
        with pytest.raises(LoadFailed, match=f"{name} cannot be mapped"):
            Container.open(tmp_path / name, device="cpu")


def test_an_object_without_the_interface_fails_to_load() -> None:
    spec = importlib.util.find_spec("_ctypes")
    with pytest.raises(LoadFailed, match="has no AOTInductorModelContainer"):
        Container.open(Path(spec.origin), device="cpu")


def test_an_unknown_device_fails_to_load() -> None:
    with pytest.raises(LoadFailed, match=r"program\.so could not be set up for nonsense"):
        Container.open(built_program().shared_object, device="nonsense")


CHILD = """
import os, sys, torch
from pathlib import Path
from aot.runtime.container import Container

def load_and_run():
    container = Container.open(Path(sys.argv[1]), device="cpu")
    container.bind({slot.fqn: torch.ones(SHAPES[slot.fqn]) for slot in container.constants})
    return container.run((torch.ones(5, 16), torch.ones(5, 32)))[4].sum().item()

SHAPES = {"first.weight": (32, 16), "first.bias": (32,), "second.weight": (4, 32), "second.bias": (4,), "calls": (),
          "running": (32,), "lifted_tensor_0": (4,)}
"""


def run_child(code: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", CHILD + code, str(built_program().shared_object)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_a_forked_child_loads_and_runs() -> None:
    code = """
child = os.fork()
if child == 0:
    os._exit(0 if load_and_run() == 5 * 32 * 18 else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), load_and_run())
"""
    assert run_child(code).split() == ["0", "2880.0"]


def test_neither_dynamo_nor_inductor_is_imported_and_exit_is_clean() -> None:
    code = """
kept = Container.open(Path(sys.argv[1]), device="cpu")  # alive at exit, and bound below
kept.bind({slot.fqn: torch.ones(SHAPES[slot.fqn]) for slot in kept.constants})
load_and_run()
print([name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))])
"""
    assert run_child(code).strip() == "[]"
