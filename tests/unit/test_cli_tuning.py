"""What tuning chose, as `aot show --kernels` tells it."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec

from aot.cli.bundles import show, show_lines
from aot.cli.tuning import clock_lines, clock_words, measured_record, tuning_lines, tuning_records
from aot.schema.artifact import Kernel, Winner
from aot.schema.codec import encode
from aot.schema.environment import Clocks
from aot.schema.manifest import Envelope
from aot.schema.measured import (
    Contest,
    Measured,
    spell_point,
    write_candidates,
    write_clocks,
    write_contest,
    write_memory,
)
from aot.schema.wire.signed import SignedManifest
from tests.builders import a_latency, a_manifest, a_speed, an_artifact, manifest_text


def test_a_tuned_kernel_is_told_with_its_margin_and_where_it_was_measured() -> None:
    kernels = (
        Kernel(name="mm_1", choice="triton_mm_7", candidates=21, best_us=10.0, next_us=12.5),
        Kernel(name="mm_2", choice="mm", candidates=21, best_us=10.0, next_us=10.2, reused=True),
        Kernel(name="mm_3", choice="mm", candidates=2, best_us=4.0),
        Kernel(name="triton_poi_0"),
    )
    assert tuning_lines(an_artifact(kernels=kernels)) == [
        "  tuned mm_1: triton_mm_7, 10.0 us, best of 21, the next 25.0 % slower",
        "  tuned mm_2: mm, 10.0 us, best of 21, the next 2.0 % slower (a near tie), as measured by an earlier build",
        "  tuned mm_3: mm, 4.0 us, best of 2",
        "  1 kernel(s) without times of candidates: the compiler chose their configurations, measured where the recipe"
        " tunes",
    ]


def test_an_artifact_without_kernels_has_nothing_to_tell() -> None:
    assert tuning_lines(an_artifact(kernels=())) == []


CLOCKS = Clocks(sm_mhz=1755, memory_mhz=2619, most_sm_mhz=1980, most_memory_mhz=2619, application_sm_mhz=1755)


def test_clocks_are_told_of_each_kernel_and_of_each_speed() -> None:
    kernel = Kernel(name="mm_1", choice="mm", candidates=2, best_us=4.0)
    at = "SM 1755 MHz of 1980, set to 1755; memory 2619 MHz of 2619"
    facts = {
        **write_clocks(Measured.TUNING, {"0": None, "1": CLOCKS}),
        **write_clocks(Measured.COMPILED, {"": Clocks(sm_mhz=1000)}),
        **write_clocks(Measured.PROOF, {"batch 4": CLOCKS, "": None}),
    }
    artifact = an_artifact(kernels=(kernel, kernel), speeds=(a_speed(point={"batch": 4}), a_speed()), facts=facts)
    line = "  tuned mm_1: mm, 4.0 us, best of 2"
    assert tuning_lines(artifact) == [line, f"{line}, at {at}"]
    assert [one.get("clocks") for one in tuning_records(artifact)] == [None, msgspec.to_builtins(CLOCKS)]
    assert clock_lines(artifact) == [
        "  clocks when it had been compiled: SM 1000 MHz",
        f"  clocks at batch 4: {at}",
    ]
    assert clock_words(Clocks(sm_mhz=1000)) == "SM 1000 MHz"
    assert clock_words(Clocks()) == "clocks that the driver did not tell"


def test_a_bundle_of_a_card_is_shown_with_its_clocks_and_what_its_graphs_hold() -> None:
    speed = msgspec.structs.replace(a_speed(point={"b": 2, "a": 1}), graphs=a_latency(50.0), winner=Winner.GRAPHS)
    facts = {
        **write_clocks(Measured.COMPILED, {"": CLOCKS}),
        **write_clocks(Measured.PROOF, {spell_point(speed.point): CLOCKS}),
        **write_memory({spell_point(speed.point): 35_000_000}),
    }
    manifest = a_manifest(artifacts=(an_artifact(speeds=(speed,), facts=facts),))
    text, digest = manifest_text(manifest)
    signed = SignedManifest(digest=digest, manifest=text, envelope=Envelope(payload="", signatures=()))
    lines = show_lines([signed], kernels=True)
    assert any("as a CUDA graph 50 us (35.0 MB held)" in line for line in lines)
    assert "  clocks when it had been compiled: SM 1755 MHz of 1980, set to 1755; memory 2619 MHz of 2619" in lines
    client: Any = SimpleNamespace(resolve=lambda reference: (signed,))
    ((told,),) = [one["measured"] for one in json.loads(encode(show(client, "mini:v1", kernels=True)[0]))]
    clocks = msgspec.to_builtins(CLOCKS)
    assert told == {
        "contest": None,
        "clocks_compiled": clocks,
        "clocks": {"a 1, b 2": clocks},
        "graph_memory_bytes": {"a 1, b 2": 35_000_000},
    }


TIMES = {"triton_mm (BLOCK_M=64, num_warps=4)": 10.0, "mm": 12.5, "triton_mm (BLOCK_M=8)": None}


def test_the_winner_is_told_by_its_configuration_and_scripts_get_every_candidate() -> None:
    kernels = (Kernel(name="mm_1", choice="triton_mm_7", candidates=3, best_us=10.0, next_us=12.5),)
    artifact = an_artifact(kernels=kernels, facts=write_candidates([TIMES]))
    assert tuning_lines(artifact) == [
        "  tuned mm_1: triton_mm_7 (BLOCK_M=64, num_warps=4), 10.0 us, best of 3, the next 25.0 % slower"
    ]
    assert tuning_records(artifact)[0]["times_us"] == TIMES
    plain = an_artifact(kernels=kernels, facts=write_candidates([{"triton_mm_7": 10.0, "mm": 12.5}]))
    assert tuning_lines(plain)[0].startswith("  tuned mm_1: triton_mm_7, 10.0 us")


def test_what_tuning_measured_is_told_also_where_the_untuned_build_was_the_faster_one() -> None:
    tuned = Kernel(name="mm_1", choice="triton_mm_7", candidates=3, best_us=10.0, next_us=12.5, reused=True)
    facts = {**write_candidates([TIMES]), **write_clocks(Measured.TUNING, {"0": Clocks(sm_mhz=1980)})}
    contest = Contest(tuned_us=660.04, untuned_us=520.0, kept_untuned=True, kernels=(tuned,), facts=facts)
    artifact = an_artifact(kernels=(Kernel(name="triton_poi_0"),), facts=write_contest(contest))
    lines = tuning_lines(artifact)
    assert lines[1:] == [
        "  the untuned build is kept: 660.0 us a call tuned, 520.0 us untuned",
        "  not kept: tuned mm_1: triton_mm_7 (BLOCK_M=64, num_warps=4), 10.0 us, best of 3, the next 25.0 % slower,"
        " as measured by an earlier build, at SM 1980 MHz",
    ]
    told = measured_record(artifact)["contest"]
    assert (told["kept"], told["tuned_us"], told["untuned_us"]) == ("untuned", 660.04, 520.0)
    ((rejected),) = told["rejected"]
    assert rejected["times_us"] == TIMES and rejected["clocks"]["sm_mhz"] == 1980 and rejected["margin"] == 1.25
    assert tuning_records(artifact) == []


def test_the_kept_tuned_build_has_its_kernels_once() -> None:
    tuned = Kernel(name="mm_1", choice="mm", candidates=3, best_us=10.0)
    contest = Contest(tuned_us=5.0, untuned_us=7.0, kept_untuned=False)
    lines = tuning_lines(an_artifact(kernels=(tuned,), facts=write_contest(contest)))
    assert lines == [
        "  tuned mm_1: mm, 10.0 us, best of 3",
        "  the tuned build is kept: 5.0 us a call tuned, 7.0 us untuned",
    ]


def test_scripts_get_the_tuning_of_every_artifact_only_where_they_ask_for_kernels() -> None:
    kernel = Kernel(name="mm_1", choice="mm", candidates=21, best_us=10.0, next_us=10.25)
    text, digest = manifest_text(a_manifest(artifacts=(an_artifact(kernels=(kernel,)),)))
    signed = SignedManifest(digest=digest, manifest=text, envelope=Envelope(payload="", signatures=()))
    client: Any = SimpleNamespace(resolve=lambda reference: (signed,))
    (told,) = json.loads(encode(show(client, "mini:v1", kernels=True)[0]))
    assert told["digest"] == digest and told["manifest"] == text
    (records,) = told["tuning"]
    assert [(one["name"], one["near_tie"]) for one in records] == [("mm_1", True)]
    assert show(client, "mini:v1")[0] == (signed,)


def test_where_nothing_was_measured_no_choice_is_claimed() -> None:
    untuned = an_artifact(kernels=(Kernel(name="triton_poi_0"), Kernel(name="triton_red_1")), tuned=False)
    assert tuning_lines(untuned) == ["  2 kernel(s) without times of candidates"]


def test_scripts_get_the_margin_and_whether_it_is_a_near_tie() -> None:
    kernels = (
        Kernel(name="mm_1", choice="triton_mm_7", candidates=21, best_us=10.0, next_us=12.5),
        Kernel(name="mm_2", choice="mm", candidates=21, best_us=10.0, next_us=10.25, reused=True),
        Kernel(name="mm_3", choice="mm", candidates=2, best_us=4.0),
        Kernel(name="triton_poi_0"),
    )
    records = tuning_records(an_artifact(kernels=kernels))
    found = [(one["name"], one["margin"], one["near_tie"]) for one in records]
    assert found == [("mm_1", 1.25, False), ("mm_2", 1.025, True), ("mm_3", None, None)]
    assert (
        msgspec.convert({k: v for k, v in records[1].items() if k not in ("margin", "near_tie")}, Kernel) == kernels[1]
    )
