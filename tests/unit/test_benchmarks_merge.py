"""Results of several calls as one file: the newest row stays, batches of both, and which host each was measured on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import merge as merging
from benchmarks.card import read_report
from benchmarks.card_host import label_of
from benchmarks.merge import key_of, merge, on_host
from benchmarks.table import render
from tests.unit.test_benchmarks_card import MODE, a_row, speeds

HOST = {"card": "NVIDIA H200", "cpu": "a CPU", "torch": "2.11.0+cu130", "driver": "580.1"}
OTHER = {**HOST, "driver": "590.2"}
EARLY, LATE = "2026-11-01T10:00:00+00:00", "2026-11-01T11:00:00+00:00"


def a_report(*rows: dict[str, Any], host: dict[str, Any] = HOST, not_reached: tuple = ()) -> dict[str, Any]:
    return {"rows": list(rows), "not_reached": list(not_reached), "host": host}


def taken(row: dict[str, Any], at: str, **changes: Any) -> dict[str, Any]:
    return {**row, "taken": at, **changes}


def at_batches(*pairs: tuple[int, float]) -> dict[str, Any]:
    return {"eager": speeds(*((batch, 2 * ms) for batch, ms in pairs)), "this": speeds(*pairs)}


def missing(reason: str, *, at: str = "", row: str = "ours") -> dict[str, Any]:
    found = {"model": "bert", "mode": MODE, "row": row, "reason": reason}
    return found | ({"taken": at} if at else {})


def test_rows_of_two_streams_stand_in_one_report() -> None:
    merged = merge([a_report(a_row("bert", "ours")), a_report(a_row("vit", "ours"), a_row("bert", "jit"))])
    assert sorted(map(key_of, merged["rows"])) == [
        ("bert", MODE, "jit"),
        ("bert", MODE, "ours"),
        ("vit", MODE, "ours"),
    ]
    assert merged["host"] == HOST and not any("host" in row for row in merged["rows"])


@pytest.mark.parametrize("turned", [False, True])
def test_the_newest_row_stays_whichever_file_comes_first(turned: bool) -> None:
    old, new = (a_report(taken(a_row("bert", "ours", ms=ms), at)) for ms, at in ((1.0, EARLY), (0.5, LATE)))
    merged = merge([new, old] if turned else [old, new])
    assert merged["rows"] == new["rows"]


def test_of_rows_without_a_time_the_last_files_stays_and_none_beats_one_that_has() -> None:
    first, second = a_report(a_row("bert", "ours", ms=1.0)), a_report(a_row("bert", "ours", ms=0.5))
    assert merge([first, second])["rows"] == second["rows"]
    timed = a_report(taken(a_row("bert", "ours"), EARLY))
    assert merge([timed, second])["rows"] == timed["rows"]


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_no_row_is_that_of_the_newest_report_which_has_it(turned: bool) -> None:
    old = a_report(taken(a_row("bert", "ours"), EARLY)) | {"tests": "41 passed", "note": "kept"}
    new = a_report(taken(a_row("vit", "ours"), LATE)) | {"tests": "42 passed"}
    merged = merge([new, old] if turned else [old, new])
    assert (merged["tests"], merged["note"]) == ("42 passed", "kept")


def test_batches_that_only_the_older_row_has_are_kept_beside_their_own_eager_ones() -> None:
    old = taken(a_row("bert", "ours"), EARLY, steady=at_batches((1, 1.0), (16, 4.0)))
    new = taken(a_row("bert", "ours"), LATE, steady=at_batches((1, 0.5), (32, 8.0)))
    (row,) = merge([a_report(new), a_report(old)])["rows"]
    for name, factor in (("this", 1), ("eager", 2)):
        found = [(one["batch"], one["p50_ms"]) for one in row["steady"][name]["batches"]]
        assert found == [(1, factor * 0.5), (16, factor * 4.0), (32, factor * 8.0)]
    assert row["taken"] == LATE


def test_a_row_that_was_cut_off_replaces_no_whole_one() -> None:
    whole, cut = taken(a_row("bert", "ours"), EARLY), taken(a_row("bert", "ours", ratio=3.0), LATE)
    del cut["steady"]
    merged = merge([a_report(whole), a_report(cut, not_reached=(missing("cut off", at=LATE),))])
    assert merged["rows"] == [whole]
    assert [one["reason"] for one in merged["not_reached"]] == ["cut off"]


def test_what_was_not_reached_is_forgotten_once_a_newer_row_is_there() -> None:
    before, later = a_report(not_reached=(missing("no time", at=EARLY),)), a_report(taken(a_row("bert", "ours"), LATE))
    assert merge([later, before])["not_reached"] == []
    of_both = (a_report(not_reached=(missing(text, at=at),)) for text, at in (("late", LATE), ("early", EARLY)))
    assert [one["reason"] for one in merge(list(of_both))["not_reached"]] == ["late"]


def test_a_failure_that_a_report_lists_beside_its_row_came_after_it() -> None:
    report = a_report(a_row("bert", "ours"), not_reached=(missing("the second time"),))
    assert merge([report])["not_reached"] == report["not_reached"]


def test_rows_of_another_host_name_it_and_the_table_tells() -> None:
    old = a_report(taken(a_row("vit", "ours"), EARLY), host=OTHER)
    new = a_report(taken(a_row("bert", "ours"), LATE))
    merged = merge([new, old])
    assert merged["host"] == HOST
    assert {row["model"]: row.get("host") for row in merged["rows"]} == {"vit": OTHER, "bert": None}
    text = render(merged, MODE)
    assert text[:3] == [
        f"Mode `{MODE}`; NVIDIA H200, a CPU, 2.11.0+cu130.",
        "",
        "* ViT-B/16 (86 M), ours: NVIDIA H200, a CPU, 2.11.0+cu130, driver 590.2",
    ]
    # Continued on the other host again, and merged with itself: each row goes on naming where it comes from.
    back = on_host(merged, OTHER)
    assert {row["model"]: row.get("host") for row in back["rows"]} == {"vit": None, "bert": HOST}
    assert merge([back, back])["rows"] == back["rows"]


def test_an_empty_report_gets_its_host(tmp_path: Path) -> None:
    assert on_host(read_report(tmp_path / "none.json"), HOST) == a_report()


def test_files_are_merged_into_the_results_of_their_card_with_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(merging, "RESULTS", tmp_path)
    assert label_of(HOST) == "h200-torch-2.11.0"
    files = {
        "h200-torch-2.11.0": a_report(a_row("dit", "ours")) | {"tests": "42 passed"},
        "card-0": a_report(taken(a_row("bert", "ours"), EARLY)),
        "card-1": a_report(taken(a_row("vit", "ours"), LATE)),
    }
    for name, report in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    monkeypatch.setattr(sys, "argv", ["merge", str(tmp_path / "card-0.json"), str(tmp_path / "card-1.json")])
    assert merging.main() == 0
    merged = read_report(tmp_path / "h200-torch-2.11.0.json")
    assert [row["model"] for row in merged["rows"]] == ["dit", "bert", "vit"]
    assert merged["tests"] == "42 passed" and "3 rows" in capsys.readouterr().err


def test_results_of_another_card_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, host in (("one", HOST), ("other", {**HOST, "card": "NVIDIA L4"})):
        (tmp_path / name).write_text(json.dumps(a_report(host=host)))
    monkeypatch.setattr(sys, "argv", ["merge", str(tmp_path / "one"), str(tmp_path / "other")])
    with pytest.raises(SystemExit):
        merging.main()
    assert "found h200-torch-2.11.0, l4-torch-2.11.0" in capsys.readouterr().err
