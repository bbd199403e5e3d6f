"""The bookkeeping of a card's benchmark: which rows are planned, kept and replaced, and what the table says of them."""

import itertools
import json
import subprocess
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from aot.schema.artifact import Kernel
from aot.schema.measured import Contest, write_contest
from aot.schema.state import BuildState
from benchmarks import card, card_regions, service
from benchmarks.card_rows import ROWS, Bench, built_of, starts_of, steady_of
from benchmarks.card_width import saved_of
from benchmarks.models import CARD, DEEP, Model
from benchmarks.service import Service
from benchmarks.starts import Start
from benchmarks.table import geometric_mean, missed, peak_ratio, render, rows_of
from benchmarks.table_wanted import never_begun, wanted_of
from tests.builders import a_manifest, an_artifact, manifest_text

MODE = "max-autotune"


def nothing() -> None:
    """Write nothing."""


def speeds(*pairs: tuple[int, float], peak: int = 100) -> dict[str, Any]:
    batches = [
        {"batch": batch, "p50_ms": ms, "p90_ms": ms * 1.1, "error": 1e-3, "eager_error": 2e-3} for batch, ms in pairs
    ]
    return {**batches[0], "batches": batches, "peak_bytes": peak}


def a_row(
    model: str, row: str, *, mode: str = MODE, ms: float = 1.0, ratio: float = 1.0, size: int = 1
) -> dict[str, Any]:
    return {
        "model": model,
        "mode": mode,
        "row": row,
        "title": CARD[model].title,
        "seconds": [5.0 * ratio, 6.0 * ratio],
        "eager_seconds": [5.0, 6.0],
        "ratio_median": ratio,
        "ratio_range": [ratio, ratio],
        "added_seconds": 5.5 * (ratio - 1),
        "steady": {"eager": speeds((1, 2.0), (16, 8.0)), "this": speeds((1, ms), (16, 4 * ms), peak=101)},
        "processes": [],
        "compiler_modules_beyond_eager": 0,
        "bytes": size,
    }


def a_report(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"host": {"card": "a card", "torch": "2.11.0"}, "rows": list(rows), "not_reached": []}


def test_the_table_has_ratios_of_ours_to_eager_to_jit_and_to_the_mega_cache() -> None:
    report = a_report(
        a_row("decoder", "ours", ms=0.5, ratio=1.02, size=1_000_000),
        a_row("decoder", "jit", ms=1.0, ratio=20.0),
        a_row("decoder", "mega-cache", ms=1.0, ratio=6.0, size=20_000_000),
    )
    text = "\n".join(render(report, MODE))
    assert "| GPT-2-size decoder (124 M), 64 tokens | 5.50 s | 1.020 | +110 ms | 5.61 s | - | - | 33.00 s |" in text
    assert "| 1 | 2.000 (2.200) ms | 0.500 (0.550) ms | 1.000 ms | - | 4.00 | 0.50 |" in text
    assert "Geometric mean of eager / ours: 4.00." in text
    assert "| 1.00 MB | - | 20.00 MB | - | 0.050 | 1.010 | 1.0e-03 (2.0e-03) | 0 | 0 |" in text
    assert [line for line in text.partition("Missed:")[2].splitlines() if line and "not run yet" not in line] == []


def test_how_often_eager_was_the_fastest_is_told() -> None:
    graphs, eager = {"winner": "graphs"}, {"winner": "eager"}
    report = a_report(
        {**a_row("decoder", "ours", ms=0.5), "speeds": [[graphs], [eager]]},
        {**a_row("bert", "ours", ms=0.5), "speeds": [[graphs, graphs]]},
    )
    lines = "\n".join(render(report, MODE))
    assert "eager / ours: 4.00. Fastest at the proof, of 4 points: graphs at 3, compiled at 0, eager at 1." in lines


def test_every_bound_that_was_not_kept_is_listed_with_its_figure() -> None:
    report = a_report(
        a_row("llama-decode", "ours", ms=2.5, ratio=1.2, size=5),
        a_row("llama-decode", "jit", ms=2.6),
        a_row("llama-decode", "mega-cache", size=10),
    )
    report["not_reached"] = [{"model": "vit", "mode": MODE, "row": "ours", "reason": "NotReached: the time was over"}]
    found = "\n".join(missed(report, MODE))
    assert "llama-decode: start ours / eager 1.200 (2 pairs, 1.20 to 1.20), wanted at most 1.05" in found
    assert "llama-decode, batch 1: ours / JIT in this mode 0.96, wanted at most 0.9" in found
    assert "batch 16: ours / JIT" not in found  # 0.96 is enough where launches do not dominate
    assert "llama-decode, batch 1: eager / ours 0.80, wanted at least 1.0" in found
    assert "geometric mean of eager / ours 0.80, wanted at least 1.7" in found
    assert "bundle / Mega-Cache bytes 0.50, wanted at most 0.1" in found
    assert "vit, ours: not measured: NotReached: the time was over" in found


def test_what_nobody_has_run_is_named_by_model_and_row() -> None:
    report = a_report(*(a_row("decoder", row) for row in ("ours", "jit", "warm", "mega-cache")))
    report["not_reached"] = [{"model": "decoder", "mode": MODE, "row": "package", "reason": "NotReached: no time"}]
    found = {line.partition(":")[0]: line for line in never_begun(report, MODE)}
    assert found["decoder"] == "decoder: not run yet: captured, bytecode, jit-default, aot-compile, second-build"
    assert found["decoder-32"] == "decoder-32: not run yet: regions, regions-tuned"
    assert found["vit"].startswith("vit: not run yet: ours, jit, ")
    assert found["dit"].endswith(", aot-compile, regions, regions-tuned")
    assert list(found) == [*CARD, "decoder-32"]
    assert [f"* {line}" for line in found.values()] == render(report, MODE)[-len(found) :]


def test_a_card_of_which_everything_was_run_lacks_nothing() -> None:
    rows = [{"model": model, "mode": mode, "row": row} for model, mode, row in wanted_of(MODE)]
    assert list(never_begun(a_report(*rows), MODE)) == []
    assert list(never_begun(a_report(*rows[1:]), MODE)) == ["decoder: not run yet: ours"]


def test_of_a_mode_without_graphs_ours_alone_is_wanted() -> None:
    wanted = {row for _, mode, row in wanted_of("max-autotune-no-cudagraphs") if mode != "default"}
    assert wanted == {"ours"}


def test_memory_is_bounded_only_in_modes_without_graphs() -> None:
    row = a_row("bert", "ours", ms=0.5)
    row["steady"]["this"]["peak_bytes"] = 110
    assert peak_ratio({"ours": row}) == 1.1
    assert not any("peak memory" in one for one in missed(a_report(row), MODE))
    assert any("peak memory" in one for one in missed(a_report({**row, "mode": "default"}), "default"))


def test_regions_are_judged_by_what_they_save_and_keep() -> None:
    one = {"model": "dit", "mode": "default", "row": "regions", "title": "DiT", "times_cheaper": 5.0}
    one |= {
        "speed_kept": {"1": 0.9, "16": 0.96},
        "compile_seconds": {"whole": 50.0, "auto": 10.0},
        "steady": {way: speeds((1, 1.0), (16, 2.0)) for way in ("whole", "auto", "eager")},
    }
    report = a_report(one)
    assert "| DiT | default | 50.0 s | 10.0 s | 5.0x | 1 | 1.000 ms | 1.000 ms | 1.000 ms |" in render(report, MODE)
    assert "| DiT | default | 50.0 s | 10.0 s | 5.0x | 16 | 2.000 ms | 2.000 ms | 2.000 ms |" in render(report, MODE)
    found = list(missed(report, MODE))
    assert found[0] == "dit: regions compile 5.0x cheaper, wanted 7.5x"
    assert found[1] == "dit, batch 1: regions keep 90% of the speed, wanted 95%"
    assert not any("batch 16: regions" in line for line in found)
    # Tuned, equal blocks share what takes the time: both figures are reported, and nothing is wanted of them.
    tuned = a_report({**one, "row": "regions-tuned", "mode": MODE, "times_cheaper": 1.1, "speed_kept": {"1": 0.5}})
    assert any(line.startswith(f"| DiT | {MODE} | 50.0 s | 10.0 s | 1.1x | 1 |") for line in render(tuned, MODE))
    assert not any("regions" in line for line in missed(tuned, MODE) if "not run yet" not in line)


def test_a_table_begins_after_an_empty_line() -> None:
    """Without one Markdown makes it rows of the table before."""
    regions = {"model": "dit", "mode": "default", "row": "regions", "title": "DiT", "times_cheaper": 8.0}
    regions |= {
        "speed_kept": {"1": 1.0},
        "compile_seconds": {"whole": 50.0, "auto": 5.0},
        "steady": {way: speeds((1, 1.0)) for way in ("whole", "auto", "eager")},
    }
    second = {"model": "dit", "mode": MODE, "row": "second-build", "title": "DiT", "saved": 0.9}
    second |= {"tuning_seconds": {way: 1.0 for way in ("first", "fresh", "again")}}
    second["builds"] = {"again": {"reused": 9, "tuned": 10}}
    lines = render(a_report(a_row("dit", "ours"), regions, second), MODE)
    heads = [number for number, line in enumerate(lines) if line.startswith("|---")]
    assert len(heads) == 5 and all(lines[number - 2] == "" for number in heads)
    for report in (a_report(regions), a_report(second)):
        assert not any(one == other == "" for one, other in itertools.pairwise(render(report, MODE)))


def test_rows_of_another_mode_are_left_out_but_for_jit_in_its_own() -> None:
    report = a_report(
        a_row("bert", "ours"), a_row("bert", "package", mode="default"), a_row("bert", "jit-default", mode="default")
    )
    assert list(rows_of(report, MODE)["bert"]) == ["ours", "jit-default"]
    of_old = {**a_row("vit", "ours"), "model": "gone"}
    assert list(rows_of(a_report(a_row("vit", "ours"), of_old, a_row("bert", "ours")), MODE)) == ["bert", "vit", "gone"]
    assert geometric_mean({}) is None


def test_a_row_replaces_only_that_of_the_same_model_mode_and_name() -> None:
    rows = [a_row("bert", "ours"), a_row("bert", "ours", mode="default"), a_row("vit", "ours"), a_row("bert", "jit")]
    card.put(rows, a_row("bert", "ours", ms=0.25))
    assert len(rows) == 4
    assert [one["steady"]["this"]["p50_ms"] for one in rows] == [1.0, 1.0, 1.0, 0.25]


def test_models_come_one_after_the_other_and_regions_last() -> None:
    assert card.plan(["vit", "dit"], ["ours", "jit", "regions"]) == [
        *(("vit", "ours"), ("vit", "jit"), ("dit", "ours"), ("dit", "jit")),
        ("dit", "regions"),
    ]
    assert ("decoder-32", "regions") in card.plan(["decoder-32"], ["regions"])
    assert card.plan(["decoder", "vit"], ["ours", "second-build"])[-1] == ("decoder", "second-build")
    assert card.plan(["decoder", "vit"], ["load", "ours"])[-2:] == [("decoder", "load"), ("vit", "load")]


def test_a_row_that_fails_or_has_no_time_is_listed_and_forgotten_once_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = a_report()
    bench = Bench(SimpleNamespace(), tmp_path, Namespace(mode=MODE))  # type: ignore[arg-type]
    card.take(report, bench, "bert", "ours", ending=0.0, write=nothing)
    assert report["not_reached"][0]["reason"] == "NotReached: the time was over"

    def fail(bench: Bench, model: Any, row: str, **_: Any) -> dict[str, Any]:
        raise RuntimeError("the child ended with 1")

    monkeypatch.setattr(card, "measure_row", fail)
    card.take(report, bench, "bert", "ours", ending=1e12, write=nothing)
    assert [one["reason"] for one in report["not_reached"]] == ["RuntimeError: the child ended with 1"]
    monkeypatch.setattr(card, "measure_row", lambda bench, model, row, keep: a_row("bert", "ours") | {"summary": {}})
    card.take(report, bench, "bert", "ours", ending=1e12, write=nothing)
    assert (report["not_reached"], len(report["rows"])) == ([], 1)


def cut_off(bench: Bench, model: Any, row: str, *, keep: Any) -> dict[str, Any]:
    """A measurement that is ended from outside once its starts are known."""
    found = a_row("bert", "ours", ratio=1.25)
    del found["steady"]
    keep(found)
    raise KeyboardInterrupt


def test_a_row_that_is_cut_off_after_its_starts_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, path = a_report(), tmp_path / "results.json"
    bench = Bench(SimpleNamespace(), tmp_path, Namespace(mode=MODE))  # type: ignore[arg-type]
    monkeypatch.setattr(card, "measure_row", cut_off)
    with pytest.raises(KeyboardInterrupt):
        card.take(report, bench, "bert", "ours", ending=1e12, write=lambda: card.write_report(report, path))
    kept = card.read_report(path)
    assert [row["ratio_median"] for row in kept["rows"]] == [1.25]
    found = "\n".join(missed(kept, MODE))
    assert "bert: start ours / eager 1.250 (2 pairs, 1.25 to 1.25), wanted at most 1.05" in found
    assert "bert, ours: not measured: cut off after its starts, before its latencies" in found
    assert "6.88 s" in "\n".join(render(kept, MODE))


def test_a_row_that_is_cut_off_replaces_no_whole_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = a_report(a_row("bert", "ours"))
    bench = Bench(SimpleNamespace(), tmp_path, Namespace(mode=MODE))  # type: ignore[arg-type]
    monkeypatch.setattr(card, "measure_row", cut_off)
    with pytest.raises(KeyboardInterrupt):
        card.take(report, bench, "bert", "ours", ending=1e12, write=nothing)
    assert ([row["ratio_median"] for row in report["rows"]], len(report["not_reached"])) == ([1.0], 1)


def test_what_a_call_that_was_cut_off_has_left_to_build_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker would finish it first, of whatever row it is: minutes of a card."""
    said: list[tuple[str, ...]] = []
    builds = [{"id": state, "state": state} for state in BuildState]

    def aot(self: Service, *words: str, quiet: bool = False) -> str:
        said.append(words)
        return json.dumps({"builds": builds}) if words[0] == "ls" else ""

    monkeypatch.setattr(Service, "aot", aot)
    assert Service({}, Path()).cancel_live() == ["queued", "running"]
    assert said == [("ls", "--builds", "--json"), ("cancel", "queued"), ("cancel", "running")]


def test_rows_that_build_for_minutes_come_last() -> None:
    assert ROWS[-2:] == ("package", "aot-compile")
    assert ROWS.index("jit") < ROWS.index("warm") < ROWS.index("mega-cache")


def test_a_row_says_how_much_more_memory_it_took() -> None:
    eager, this = speeds((1, 2.0), peak=1000), speeds((1, 1.0), peak=1015)
    done = {"counters": {}, "reasons": []}
    summary = steady_of(Start(1, 1, {}, eager, done), Start(1, 1, {}, this, done))["summary"]
    assert summary == {"eager_over_this": {"1": 2.0}, "peak_ratio": 1.015}
    eager["peak_bytes"] = this["peak_bytes"] = None
    assert steady_of(Start(1, 1, {}, eager, done), Start(1, 1, {}, this, done))["summary"]["peak_ratio"] is None


def test_a_row_says_of_both_where_the_seconds_of_a_start_went() -> None:
    def started(load: float) -> Start:
        return Start(3.0, 1, {"seconds": {"torch": 1.5, "load": load}, "modules": []}, {}, {})

    row = starts_of([started(0.0)] * 3, [started(0.3), started(0.1), started(0.2)])
    assert row["spans"] == {"torch": 1.5, "load": 0.2}
    assert row["eager_spans"] == {"torch": 1.5, "load": 0.0}


def a_second_build(*, fresh: float, again: float) -> dict[str, Any]:
    seconds = {"first": 50.0, "fresh": fresh, "again": again}
    return {
        "model": "decoder",
        "mode": MODE,
        "row": "second-build",
        "title": "GPT-2",
        "tuning_seconds": seconds,
        "saved": saved_of(seconds),
        "builds": {"again": {"tuned": 14, "reused": 10}},
    }


def test_a_second_build_is_judged_by_what_it_saves_of_tuning() -> None:
    report = a_report(a_second_build(fresh=40.0, again=10.0))
    text = "\n".join(render(report, MODE))
    assert "| GPT-2 | 50.0 s | 40.0 s | 10.0 s | 75% | 10 of 14 |" in text
    assert "decoder: a second build saves 75% of tuning, wanted 80%" in text
    assert not list(missed(a_report(a_second_build(fresh=40.0, again=4.0)), MODE))
    assert a_second_build(fresh=0.0, again=0.0)["saved"] is None
    assert "second build" not in "\n".join(render(report, "default"))


def test_an_earlier_file_is_continued_and_one_of_another_form_is_not(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert card.read_report(path) == {"rows": [], "not_reached": []}
    path.write_text(json.dumps(a_report(a_row("bert", "ours"))))
    assert len(card.read_report(path)["rows"]) == 1
    path.write_text('{"models": []}')
    assert card.read_report(path) == {"rows": [], "not_reached": []}


@pytest.mark.torch
@pytest.mark.parametrize("name", [*CARD, "decoder-32"])
def test_weights_from_a_file_give_what_the_module_gave(name: str, tmp_path: Path) -> None:
    import torch

    from benchmarks.checkpoint import make_empty, read_checkpoint, write_checkpoint

    model = {**DEEP, **CARD}[name]
    source, size = model.import_module(), model.size(tiny=True)
    made = getattr(source, model.entry_of(tiny=True).partition(":")[2])()
    module = made["module"]
    path = tmp_path / "weights.safetensors"
    write_checkpoint(module, path)
    read = read_checkpoint(make_empty(lambda: source.build_module(size=size)), path, device="cpu")
    inputs = source.example_inputs(2, size=size, **dict(model.inputs))
    with torch.inference_mode():
        assert torch.equal(module(*inputs), read(*inputs))
    tied = [id(tensor) for _, tensor in module.named_parameters()]
    assert len(tied) == sum(1 for _ in read.parameters())  # tied tensors are one again


@pytest.mark.torch
def test_weights_of_no_meaning_are_tied_as_those_of_a_file() -> None:
    import torch

    from benchmarks.checkpoint import make_empty, make_up

    source = CARD["decoder"].import_module()
    module = make_up(make_empty(lambda: source.build_module(size="tiny")), device="cpu")
    assert module.head.weight is module.tokens.weight
    assert all(isinstance(one, torch.nn.Parameter) and one.device.type == "cpu" for one in module.parameters())
    with torch.inference_mode():
        assert module(*source.example_inputs(1, size="tiny")).shape == (1, 64, 50304)


@pytest.mark.parametrize("batches", ["1,2", "16,", "0"])
def test_a_batch_that_no_program_is_built_for_is_refused_before_anything_is_built(
    batches: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["card", "--batches", batches])
    with pytest.raises(SystemExit):
        card._parse()
    assert "wanted batches of 1, 16, found" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["card", "--batches", "16,1"])
    assert card._parse().batches == "16,1"


@pytest.mark.parametrize(("batches", "unknown"), [("1,64", []), ("64", []), ("0", ["0"]), ("64,", [""])])
def test_rows_of_regions_alone_take_any_batch(batches: str, unknown: list[str]) -> None:
    assert card.unknown_batches(batches.split(","), ["regions", "regions-tuned"]) == unknown


def test_beside_other_rows_they_take_those_that_there_are_programs_for() -> None:
    assert card.unknown_batches(["1", "64"], ["regions", "ours"]) == ["64"]


@pytest.mark.parametrize(
    ("batches", "asked"), [("1,16", []), ("1", ["--dim", "batch=1"]), ("1,64", ["--dim", "batch=1,64"])]
)
def test_regions_are_built_for_the_batches_that_are_measured(
    batches: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, ...]] = []
    measured: list[list[str]] = []

    def build(model: Model, mode: str, *words: str, name: str) -> dict[str, Any]:
        built.append(words)
        return {"phases": {"compiling": 4.0 if "whole" in words else 1.0}, "reference": name}

    def start_child(words: list[str], environ: Any) -> Start:
        measured.append(words)
        return SimpleNamespace(  # type: ignore[return-value]
            measured={"batches": [{"batch": int(one), "p50_ms": 2.0} for one in batches.split(",")]},
            done={"counters": {}},
        )

    bench = SimpleNamespace(
        options=Namespace(batches=batches, measure=1.0),
        build=build,
        runs=Path("runs"),
        words=lambda model: ["decoder", "--batches", batches],
        ours_environ=lambda runs: {},
    )
    monkeypatch.setattr(card_regions, "warm_headers", lambda bench: None)
    monkeypatch.setattr(card_regions, "clean_environ", lambda runs: {})
    monkeypatch.setattr(card_regions, "start_child", start_child)
    found = card_regions.measure_regions(bench, DEEP["decoder-32"], "default")  # type: ignore[arg-type]
    assert built == [(*asked, "--regions", "whole"), (*asked, "--regions", "auto")]
    assert all(batches in words for words in measured)
    assert (found["times_cheaper"], found["speed_kept"]) == (4.0, dict.fromkeys(batches.split(","), 1.0))


def test_builds_ahead_go_on_after_one_that_fails_and_are_kept_by_a_directory_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[tuple[str, str]] = []

    def build(self: Bench, model: Model, mode: str) -> dict[str, Any]:
        built.append((model.name, mode))
        if model.name == "bert":
            raise subprocess.CalledProcessError(4, ["aot", "build"])
        return {"build_seconds": 12.0}

    monkeypatch.setattr(Bench, "build", build)
    options = Namespace(models=["decoder", "bert", "decoder-32", "vit"], mode=MODE)
    assert card.build_all(Bench(SimpleNamespace(), Path(), options)) == 1  # type: ignore[arg-type]
    assert built == [("decoder", MODE), ("bert", MODE), ("vit", MODE)]
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["decoder", "bert", "vit"]
    monkeypatch.setattr("sys.argv", ["card", "--only-build"])
    with pytest.raises(SystemExit):
        card._parse()
    assert "wanted --data with --only-build" in capsys.readouterr().err


def test_kernels_count_as_tuned_and_reused_also_where_the_untuned_build_was_kept() -> None:
    tuned = Kernel(name="mm", choice="mm", candidates=3, best_us=1.0, reused=True)
    lost = Contest(tuned_us=2.0, untuned_us=1.0, kept_untuned=True, kernels=(tuned, tuned))
    won = Contest(tuned_us=1.0, untuned_us=2.0, kept_untuned=False)
    artifacts = (
        an_artifact(kernels=(Kernel(name="mm"),), facts=write_contest(lost)),
        an_artifact(kernels=(structs.replace(tuned, reused=False), Kernel(name="sum")), facts=write_contest(won)),
        an_artifact(kernels=()),
    )
    text, _ = manifest_text(a_manifest(artifacts=artifacts))
    found = built_of(text)
    assert {name: found[name] for name in ("kernels", "tuned", "reused", "untuned_kept")} == {
        "kernels": 3, "tuned": 3, "reused": 2, "untuned_kept": 1
    }  # fmt: skip


def test_namespaces_of_a_benchmark_are_built_without_a_sandbox_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def refuse(*command: object, env: dict[str, str], **options: object) -> None:
        told.append(env["AOT_TRUST_SOURCES"])
        raise FileNotFoundError

    monkeypatch.setattr(service.subprocess, "Popen", refuse)
    with pytest.raises(FileNotFoundError), service.running_service(Path("nowhere"), namespaces=card.SPACES):
        pass
    assert told == [f"default,{','.join(card.SPACES)}"] and len(set(card.SPACES)) == 2
