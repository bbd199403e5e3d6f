"""Clocks and memory as facts of an artifact: written, read again, and passed over where they are not understood."""

import json

import pytest

from aot.schema.artifact import Kernel
from aot.schema.environment import Clocks
from aot.schema.measured import (
    Contest,
    Measured,
    candidates_of,
    clocks_of,
    contest_of,
    memory_of,
    spell_point,
    without_measured,
    write_candidates,
    write_clocks,
    write_contest,
    write_memory,
)
from tests.builders import an_artifact

CLOCKS = Clocks(sm_mhz=1980, memory_mhz=2619)


@pytest.mark.parametrize("name", [Measured.TUNING, Measured.COMPILED, Measured.PROOF])
def test_clocks_are_read_as_they_were_written_and_none_is_written_where_nobody_told(name: Measured) -> None:
    facts = write_clocks(name, {"": CLOCKS, "batch 4": None, "batch 8": Clocks(sm_mhz=5)})
    assert clocks_of(an_artifact(facts=facts), name) == {"": CLOCKS, "batch 8": Clocks(sm_mhz=5)}
    assert write_clocks(name, {"": None}) == {} and clocks_of(an_artifact(), name) == {}


def test_memory_is_read_as_it_was_written_and_none_is_written_where_nothing_was_held() -> None:
    facts = write_memory({"batch 4": 35_000_000, "batch 8": 0})
    assert memory_of(an_artifact(facts=facts)) == {"batch 4": 35_000_000}
    assert write_memory({"batch 4": 0}) == {} and memory_of(an_artifact()) == {}


def test_candidates_are_read_best_first_and_equal_ones_are_written_once() -> None:
    found = [{"triton_mm (BLOCK_M=64)": 3.5, "mm": 4.25, "triton_mm (BLOCK_M=8)": None}, {"mm": 1.0}]
    facts = write_candidates([*found, found[0]])
    read = candidates_of(an_artifact(facts=facts))
    assert [list(read[number].items()) for number in "012"] == [list(one.items()) for one in (*found, found[0])]
    assert facts[Measured.CANDIDATES].count("BLOCK_M=64") == 1
    # Equal times in another order are another choice between ties.
    turned = write_candidates([{"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0}])
    assert [list(one) for one in candidates_of(an_artifact(facts=turned)).values()] == [["a", "b"], ["b", "a"]]
    assert write_candidates([]) == {} and candidates_of(an_artifact()) == {}


def test_candidates_of_another_form_are_passed_over() -> None:
    told = {"0": [["mm", "fast"]], "1": 7, "2": [1], "3": [["mm", 2.0]], "4": 3, "5": True, "6": {"mm": 2.0}, "7": 6}
    text = json.dumps(told)
    found = candidates_of(an_artifact(facts={Measured.CANDIDATES: text}))
    assert found == {"3": {"mm": 2.0}, "4": {"mm": 2.0}}


def test_a_long_list_that_many_kernels_name_is_read_once() -> None:
    """Else a fact of a few hundred kilobytes keeps `aot show` busy for minutes."""
    told = {"9": 0, "0": [["mm", 2.0]], **{str(number): 0 for number in range(10, 13)}}
    found = candidates_of(an_artifact(facts={Measured.CANDIDATES: json.dumps(told)}))
    assert list(found) == ["0", "9", "10", "11", "12"] and len({id(one) for one in found.values()}) == 1


def test_a_contest_is_read_with_all_that_tuning_measured_for_what_was_not_kept() -> None:
    kernel = Kernel(name="mm_1", choice="triton_mm_7", candidates=2, best_us=3.5, next_us=4.0)
    facts = write_candidates([{"triton_mm (num_warps=4)": 3.5, "mm": 4.0}])
    contest = Contest(tuned_us=660.5, untuned_us=520.0, kept_untuned=True, kernels=(kernel,), facts=facts)
    read = contest_of(an_artifact(facts=write_contest(contest)))
    assert read == contest
    assert write_contest(None) == {} and contest_of(an_artifact()) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"tuned_us": "slow"}', "[" * 100_000])
def test_a_contest_of_another_form_tells_nothing(text: str) -> None:
    assert contest_of(an_artifact(facts={Measured.CONTEST: text})) is None


def test_a_contest_that_a_later_version_tells_more_of_is_read() -> None:
    text = json.dumps({"tuned_us": 1.5, "untuned_us": 2.5, "kept_untuned": False, "watts": 700})
    assert contest_of(an_artifact(facts={Measured.CONTEST: text})) == Contest(
        tuned_us=1.5, untuned_us=2.5, kept_untuned=False
    )


def test_a_point_is_spelled_alike_in_whatever_order_its_sizes_stand() -> None:
    assert spell_point({"seq": 512, "batch": 4}) == spell_point({"batch": 4, "seq": 512}) == "batch 4, seq 512"
    assert spell_point({}) == ""


@pytest.mark.parametrize("text", ["", "1980 MHz", "[1]", "null", "[" * 100_000, '{"batch 4": 7, "batch 8": "x"}'])
def test_a_fact_of_another_form_tells_nothing(text: str) -> None:
    assert clocks_of(an_artifact(facts={Measured.PROOF: text}), Measured.PROOF) == {}


def test_what_a_later_version_tells_beside_is_passed_over() -> None:
    text = json.dumps({"": {"sm_mhz": 1980, "memory_mhz": "fast", "power_watts": 700}})
    assert clocks_of(an_artifact(facts={Measured.PROOF: text}), Measured.PROOF) == {"": Clocks(sm_mhz=1980)}
    assert memory_of(an_artifact(facts={Measured.MEMORY: '{"batch 4": true, "batch 8": 5}'})) == {"batch 8": 5}


def test_the_other_facts_of_an_artifact_stay_where_measurements_are_taken_out() -> None:
    measured = {name: "{}" for name in Measured}
    assert without_measured({**measured, "march": "x86-64-v3"}) == {"march": "x86-64-v3"}
