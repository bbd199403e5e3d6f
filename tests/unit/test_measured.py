"""Clocks and memory as facts of an artifact: written, read again, and passed over where they are not understood."""

import json

import pytest

from aot.schema.environment import Clocks
from aot.schema.measured import (
    Measured,
    clocks_of,
    memory_of,
    spell_point,
    without_measured,
    write_clocks,
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
