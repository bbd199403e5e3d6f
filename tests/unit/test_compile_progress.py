"""Progress of a compile child: phases inside phases, and what tuning tells."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Thread
from typing import Any, cast

import pytest

from aot.compile.child import Progress
from aot.schema.environment import Clocks
from aot.schema.report import Phase

PAUSE = 0.05


@dataclass(frozen=True)
class Choice:
    name: str
    description: str = ""


def test_a_phase_inside_another_is_told_and_then_the_outer_one_again() -> None:
    read, write = os.pipe()
    progress = Progress(write)
    with progress.phase(Phase.COMPILING, "1 of 2"), progress.phase(Phase.TUNING, "1 of 2; kernel 1"):
        pass
    os.close(write)
    with os.fdopen(read) as told:
        events = [json.loads(line) for line in told]
    assert [(event["phase"], event["step"]) for event in events] == [
        ("compiling", "1 of 2"),
        ("tuning", "1 of 2; kernel 1"),
        ("compiling", "1 of 2"),
    ]


def test_seconds_of_a_phase_are_its_own() -> None:
    progress = Progress(None)
    with progress.phase(Phase.COMPILING):
        for _ in range(2):
            with progress.phase(Phase.TUNING):
                time.sleep(PAUSE)
    with progress.phase(Phase.COMPILING):
        time.sleep(PAUSE)
    assert progress.seconds["tuning"] >= 2 * PAUSE
    assert PAUSE <= progress.seconds["compiling"] < 2 * PAUSE


@pytest.mark.torch
def test_each_kernel_is_told_while_it_is_compared_and_not_while_it_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import select_algorithm

    from aot.compile.torch_tuning import watch_tuning

    told: list[str] = []

    @contextmanager
    def around(what: str) -> Iterator[None]:
        told.append(f"{what} begins")
        try:
            yield
        finally:
            told.append(f"{what} ends")

    one, other = Choice("one"), Choice("other")
    saver: list[Any] = []

    def compare(
        self: object, name: str, input_nodes: Any, layout: Any, input_gen_fns: Any, inputs_key: str, choices: Any
    ) -> str:
        key = inputs_key
        told.append(f"{key} of {len(choices)} compared")
        if key == "fails":
            raise RuntimeError("no candidate runs")
        saver[0]({choice: 0.001 * (2 - at) for at, choice in enumerate(choices)}, name, [], [], None, {})
        return key

    selector = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(selector, "do_autotuning", compare)
    cache = select_algorithm.get_algorithm_selector_cache()

    def ask(key: str, *choices: Choice) -> str:
        return cast("str", cache.do_autotuning("mm", [], None, None, key, list(choices)))

    with watch_tuning(around) as tuning:
        saver += cache.feedback_saver_fns
        # A card's products are listed while the graph is lowered, long before they are compared.
        for choose in cache.preprocessing_fns:
            choose([one, other])
        assert not told
        assert ask("alone", one) == "alone"
        with pytest.raises(RuntimeError, match="no candidate runs"):
            ask("fails", one, other, other)
        assert ask("third", one, other) == "third"
        # Inductor's own threads compare too where it is told to; what they do is no phase of the build.
        elsewhere = Thread(target=ask, args=("elsewhere", one, other))
        elsewhere.start()
        elsewhere.join()
    assert told == [
        "alone of 1 compared",
        "kernel 1, 3 candidates begins",
        "fails of 3 compared",
        "kernel 1, 3 candidates ends",
        "kernel 2, 2 candidates begins",
        "third of 2 compared",
        "kernel 2, 2 candidates ends",
        "elsewhere of 2 compared",
    ]
    assert [(kernel.choice, kernel.candidates) for kernel in tuning.kernels] == [("one", 1), ("other", 2), ("other", 2)]
    assert cache.feedback_saver_fns == []
    assert selector.do_autotuning is compare


@pytest.mark.torch
def test_a_kernel_is_reused_when_an_earlier_build_measured_it_and_not_when_this_one_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import select_algorithm

    from aot.compile import torch_tuning

    written = [1]
    monkeypatch.setattr(torch_tuning, "measurements_written", lambda: written[-1])
    one, other = Choice("one"), Choice("other")
    saver: list[Any] = []

    def compare(
        self: object, name: str, input_nodes: Any, layout: Any, input_gen_fns: Any, *, inputs_key: str, choices: Any
    ) -> None:
        if inputs_key == "new" and len(written) == 1:
            written.append(2)
        saver[0]({one: 0.002, other: 0.001}, name, [], [], None, {})

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "do_autotuning", compare)
    cache = select_algorithm.get_algorithm_selector_cache()
    monkeypatch.setattr(torch_tuning, "clock_reader", lambda: nullcontext(lambda: Clocks(sm_mhz=1980)))
    measured_here: set[torch_tuning.Question] = set()
    for expected, measured in (([True, False, True, False], 1), ([True, False, True, False], 0)):
        saver.clear()
        # One of each for every artifact of a build.
        with torch_tuning.watch_tuning(measured_here=measured_here) as tuning:
            saver += cache.feedback_saver_fns
            for key in ("old", "new", "old", "new"):
                cache.do_autotuning("mm", [], None, None, inputs_key=key, choices=[one, other])
        assert [kernel.reused for kernel in tuning.kernels] == expected
        # Clocks say at what speed something was measured, so there are none where nothing was.
        assert sum(clocks is not None for clocks in tuning.clocks) == measured


@pytest.mark.torch
def test_the_search_for_a_generated_kernels_configuration_is_tuning_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from aot.compile.torch_tuning import watch_tuning

    told: list[str] = []

    @contextmanager
    def around(what: str) -> Iterator[None]:
        told.append(what)
        yield
        told.append("ends")

    autotuner = CachingAutotuner.__new__(CachingAutotuner)
    autotuner.inductor_meta = {"kernel_name": "triton_red_fused_sum_0"}
    monkeypatch.setattr(CachingAutotuner, "autotune_to_one_config", lambda self, *args: told.append("measured"))
    monkeypatch.setattr(CachingAutotuner, "_coordinate_descent_tuning", lambda self, launcher: launcher)
    with watch_tuning(around):
        autotuner.autotune_to_one_config(1, 2)
        assert autotuner._coordinate_descent_tuning("found") == "found"
    autotuner.autotune_to_one_config()
    name = "configuration of triton_red_fused_sum_0"
    assert told == [name, "measured", "ends", name, "ends", "measured"]


@pytest.mark.torch
def test_a_kernel_has_the_clocks_at_which_it_was_measured_and_none_where_it_was_not() -> None:
    from aot.compile.torch_tuning import Tuning

    told = iter([Clocks(sm_mhz=1980), Clocks(sm_mhz=1755)])
    tuning = Tuning(read_clocks=lambda: next(told))
    one, other = Choice("one"), Choice("other")
    for measured in (True, False, True):
        tuning.note({one: 0.002, other: 0.001}, "mm", measured=measured)
    assert tuning.clocks == [Clocks(sm_mhz=1980), None, Clocks(sm_mhz=1755)]


def test_every_candidate_has_its_time_by_a_name_that_equal_kernels_share() -> None:
    from aot.compile.torch_tuning import Tuning

    tuning = Tuning()
    for number in (0, 3):
        small = Choice(f"triton_mm_{number}", "ACC='f32', BLOCK_M=8, num_warps=4")
        large = Choice(f"triton_mm_{number + 1}", "ACC='f32', BLOCK_M=64, num_warps=4")
        none = Choice(f"triton_mm_{number + 2}", "ACC='f32', BLOCK_M=64, num_warps=8")
        tuning.note({small: 0.0021, Choice("mm"): 0.0014, large: 0.0012, none: float("inf")}, "mm")
    expected = {
        "triton_mm (BLOCK_M=64, num_warps=4)": 1.2,
        "mm": 1.4,
        "triton_mm (BLOCK_M=8, num_warps=4)": 2.1,
        "triton_mm (BLOCK_M=64, num_warps=8)": None,
    }
    assert [list(one.items()) for one in tuning.candidates] == [list(expected.items())] * 2
    assert [kernel.choice for kernel in tuning.kernels] == ["triton_mm_1", "triton_mm_4"]


def test_candidates_that_are_configured_alike_keep_their_own_names() -> None:
    from aot.compile.torch_tuning import label_candidates

    same = "BLOCK_M=8, num_warps=4"
    assert label_candidates([Choice("cpp_gemm_0"), Choice("mm")]) == ["cpp_gemm_0", "mm"]
    assert label_candidates([Choice("triton_mm_0", same)]) == ["triton_mm_0"]
    choices = [
        Choice(f"triton_mm_{number}", text) for number, text in enumerate((same, same, "BLOCK_M=1, num_warps=4"))
    ]
    assert label_candidates(choices) == ["triton_mm (BLOCK_M=8)", "triton_mm_1", "triton_mm (BLOCK_M=1)"]
