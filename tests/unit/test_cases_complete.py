"""Every public report about what fits where is a row of `test_cases`, shown by another test, or without a verdict.

`REPORTS` are the reports of the groups A (misses across machines), B (wrong hits), C (cards, drivers, toolchains),
D (CPU instruction sets) and F (guards, ahead-of-time compilation), numbered as in the project's collection.
"""

import ast
from pathlib import Path

import msgspec
import pytest

from aot.schema.environment import ContainerFacts, Gpu, NodeFacts, ProcessFacts
from tests.unit.test_cases import CASES, QUESTIONS

ROOT = Path(__file__).parents[2]

REPORTS: dict[str, tuple[str, ...]] = {
    "A1": ("pytorch#144859",),
    "A2": ("vllm-project/vllm#47573",),
    "A4": ("ai-dynamo/modelexpress#560",),
    "A5": ("NovaSky-AI/SkyRL#2167",),
    "A6": ("pytorch#157792",),
    "A7": ("vllm-project/vllm#20451",),
    "A9": ("vllm-project/vllm#24605",),
    "A11": ("pytorch#113933",),
    "A12": ("pytorch#155332",),
    "A13": ("pytorch#156797",),
    "A15": ("pytorch#176532",),
    "A16": ("pytorch#183999",),
    "A17": ("pytorch#189330",),
    "A18": ("pytorch#108971", "pytorch#175944"),
    "A20": ("pytorch#170621",),
    "B21": ("vllm-project/vllm#50891",),
    "B22": ("vllm-project/vllm#55383",),
    "B24": ("vllm-project/vllm#28759",),
    "B25": ("vllm-project/vllm-ascend#15188",),
    "B26": ("1CatAI/1Cat-vLLM#536",),
    "B28": ("pytorch#188390",),
    "B29": ("vllm-project/vllm#38962", "NovaSky-AI/SkyRL#2183"),
    "B30": ("pytorch#160472", "pytorch#185323"),
    "B31": ("vllm-project/vllm#24915",),
    "B32": ("ls1intum/edutelligence#579",),
    "B34": ("triton-lang/triton#1323",),
    "B35": ("pytorch#194451",),
    "B36": ("pytorch#195158",),
    "C39": ("pytorch#153697",),
    "C40": ("triton-lang/triton#3001", "triton-lang/triton#2971"),
    "C42": ("pytorch#120194",),
    "C43": ("pytorch#136369", "pytorch#152087"),
    "C45": ("pytorch#109489", "pytorch#141690", "kvark/meganeura#175"),
    "C47": ("redhat-et/GKM#120",),
    "D49": ("pytorch#121516",),
    "D50": ("pytorch#191713", "pytorch#191904"),
    "D51": ("pytorch#191715",),
    "D55": ("adoptium/adoptium-support#1507",),
    "F63": ("pytorch#157721",),
    "F65": ("pytorch#194319", "pytorch#195350"),
    "F66": ("pytorch#195287",),
    "F67": ("vllm-project/vllm#24274",),
    "F68": ("vllm-project/vllm#27040",),
    "F69": ("vllm-project/vllm#36358", "vllm-project/vllm#27698"),
    "F70": ("pytorch#125958",),
}

# What these ask for is no verdict on a host, and is shown where it is done.
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "A6": ("test_layers_of_real_models_are_one_region",),
    "A7": ("test_layers_of_real_models_are_one_region",),
    "A9": (
        "test_no_place_is_a_fact_of_a_host",
        "test_it_runs_compiled",
    ),
    "A12": ("test_a_receipt_tells_of_the_load",),
    "B32": (
        "test_a_damaged_blob_of_the_cache_is_fetched_again",
        "test_an_artifact_that_cannot_be_opened_is_a_reason",
    ),
    "B36": ("test_a_call_runs_as_a_graph_where_that_was_fastest",),
    "C42": (
        "test_no_place_is_a_fact_of_a_host",
        "test_it_runs_compiled",
    ),
    "F69": ("test_neither_dynamo_nor_inductor_is_imported_and_exit_is_clean",),
    "F70": ("test_neither_dynamo_nor_inductor_is_imported_and_exit_is_clean",),
}

# In these there is neither a fact of an artifact nor one of a host that a rule could compare.
WITHOUT_A_VERDICT: dict[str, str] = {
    "A11": "asks for a way to save and load at all, which is `aot build` and `aot.load`; names no difference of hosts",
    "A13": "asks when to save and when to load: a question of documentation, answered by README and docs",
    "A15": "the key's pickling fails on a cyclic object; our keys are digests over named texts and pickle nothing",
    "A16": "the same of a DTensor; what cannot be exported fails the build by name and never becomes an artifact",
    "F68": "a program compiles just in time and not ahead: the build says so, and it runs eagerly on every host",
}


def cited() -> set[str]:
    """The reports that rows name, before their colon."""
    rows = [*(case.report for case in CASES), *(question.report for question in QUESTIONS)]
    return {row.partition(":")[0] for row in rows}


@pytest.mark.parametrize("number", REPORTS)
def test_every_report_is_a_row_or_has_a_reason(number: str) -> None:
    is_row = bool(cited() & set(REPORTS[number]))
    told = [is_row, number in SHOWN_BY, number in WITHOUT_A_VERDICT]
    assert told.count(True) == 1, "a row, another test, or the reason why there is none"


def test_reasons_are_for_reports_that_there_are() -> None:
    assert SHOWN_BY.keys() | WITHOUT_A_VERDICT.keys() <= REPORTS.keys()
    assert all(len(reason.split()) > 8 for reason in WITHOUT_A_VERDICT.values())
    names = [name for names in REPORTS.values() for name in names]
    assert len(names) == len(set(names))


def test_what_shows_a_report_elsewhere_is_there() -> None:
    functions = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert {test for tests in SHOWN_BY.values() for test in tests} <= functions


@pytest.mark.parametrize("facts", [NodeFacts, ContainerFacts, ProcessFacts, Gpu])
def test_no_place_is_a_fact_of_a_host(facts: type[msgspec.Struct]) -> None:
    """vllm-project/vllm#24605, pytorch#120194: what was compiled in one directory is used from another."""
    of_places = ("path", "dir", "home", "folder", "root", "prefix", "cwd")
    names = [field.name for field in msgspec.structs.fields(facts)]
    assert names and not [name for name in names if any(word in name for word in of_places)]
