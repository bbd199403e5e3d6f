"""Progress of a compile child: phases inside phases, and what tuning tells."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
def test_each_kernel_is_told_while_it_is_tuned_and_also_after_one_that_failed() -> None:
    from torch._inductor import select_algorithm

    from aot.compile.torch_inductor import watch_tuning

    told: list[str] = []

    @contextmanager
    def around(kernel: int, candidates: int) -> Iterator[None]:
        told.append(f"{kernel} of {candidates} begins")
        try:
            yield
        finally:
            told.append(f"{kernel} ends")

    one, other = Choice("one"), Choice("other")
    cache = select_algorithm.get_algorithm_selector_cache()
    with watch_tuning(around) as tuning:
        (begin,), (end,) = cache.preprocessing_fns[-1:], cache.feedback_saver_fns
        begin([one])  # nothing to compare
        begin([one, other, other])  # fails, so nothing is reported
        begin([one, other])
        end({one: 0.002, other: 0.001}, "mm", [], [], None, {})
        begin([one, other])
    assert told == ["1 of 3 begins", "1 ends", "2 of 2 begins", "2 ends", "3 of 2 begins", "3 ends"]
    assert [(kernel.name, kernel.choice, kernel.candidates) for kernel in tuning.kernels] == [("mm", "other", 2)]
    assert begin not in cache.preprocessing_fns
    assert cache.feedback_saver_fns == []


@pytest.mark.torch
def test_a_kernel_has_the_clocks_at_which_it_was_measured_and_none_where_it_was_not() -> None:
    from aot.compile.torch_inductor import Tuning

    told = iter([Clocks(sm_mhz=1980), Clocks(sm_mhz=1755)])
    tuning = Tuning(read_clocks=lambda: next(told))
    one, other = Choice("one"), Choice("other")
    for reused in (False, True, False):
        tuning.note({one: 0.002, other: 0.001}, "mm", reused=reused)
    assert tuning.clocks == [Clocks(sm_mhz=1980), None, Clocks(sm_mhz=1755)]


def test_every_candidate_has_its_time_by_a_name_that_equal_kernels_share() -> None:
    from aot.compile.torch_inductor import Tuning

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
    from aot.compile.torch_inductor import label_candidates

    same = "BLOCK_M=8, num_warps=4"
    assert label_candidates([Choice("cpp_gemm_0"), Choice("mm")]) == ["cpp_gemm_0", "mm"]
    assert label_candidates([Choice("triton_mm_0", same)]) == ["triton_mm_0"]
    choices = [
        Choice(f"triton_mm_{number}", text) for number, text in enumerate((same, same, "BLOCK_M=1, num_warps=4"))
    ]
    assert label_candidates(choices) == ["triton_mm (BLOCK_M=8)", "triton_mm_1", "triton_mm (BLOCK_M=1)"]
