"""Threads, forked processes and copies of a model."""

import copy
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.bundle import StoredBundle
from aot.errors import InvalidInput
from aot.schema.wire.workers import Outcome
from tests.integration.compiled_model.scaled import NOT_WRITTEN, load, scaled, was_compiled, x
from tests.integration.handmade import write_handmade


def test_calls_from_four_threads_are_right_while_a_fifth_exchanges_the_weights(tmp_path: Path) -> None:
    module = scaled()
    model = load(write_handmade(tmp_path, "FORGETFUL", constants=NOT_WRITTEN), module)
    scales = [1.0, 2.0, 4.0, 8.0]
    wrong: list[torch.Tensor] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            result = model(x()) - 1
            if not any(torch.equal(result, x() * scale) for scale in scales):
                wrong.append(result)

    def exchange() -> None:
        for turn in range(200):
            if turn % 3:
                module.scale = nn.Parameter(torch.full((4,), scales[turn % 4]), requires_grad=False)
            else:
                model.rebind()
        stop.set()

    module.scale.fill_(1.0)
    threads = [threading.Thread(target=one) for one in (call, call, call, call, exchange)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    counters = model.counters
    assert counters["eager"] == 0 and counters["compiled"] == counters["calls"] > 0 and counters["rebinds"] > 60


def in_child(work: Callable[[], bool]) -> bool:
    """Run `work` in a fork and return whether it was true there."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_child_loads_for_itself_and_what_was_loaded_before_the_fork_runs_eagerly_there(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)

    def child() -> bool:
        own = load(bundle, scaled(3.0))
        return was_compiled(own) and not was_compiled(model) and "before a fork" in model.last_miss

    assert in_child(child)
    assert was_compiled(model), "the parent's is as it was"


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loaded_model_is_not_copied_but_says_what_to_do(bundle: StoredBundle, take: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput, match="cannot be copied or pickled") as caught:
        take(load(bundle, scaled()))
    assert caught.value.hint and "load the bundle for the copy" in caught.value.hint


def test_after_unload_every_call_is_eager_and_counted(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    model.unload()
    assert not was_compiled(model)
    assert (model.outcome, model.counters["eager"]) == (Outcome.EAGER, 1)
