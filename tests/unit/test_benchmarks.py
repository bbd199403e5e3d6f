"""The benchmarks' own bookkeeping: what is compared with what, and that a failed run is no measurement."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import load_profile
from benchmarks.cold_start import compare, start_pairs
from benchmarks.load_profile import COLLECTIONS, REST, Steps
from benchmarks.starts import Start, clean_environ, count_processes


def test_pairs_alternate_in_which_goes_first_and_the_first_pair_does_not_count() -> None:
    order: list[str] = []

    def run(name: str) -> Start:
        order.append(name)
        return Start(float(len(order)), 0.0, {}, {}, {})

    eager, ours = start_pairs(lambda: run("eager"), lambda: run("ours"), pairs=3, title="a model")
    assert order == ["eager", "ours", "ours", "eager", "eager", "ours", "ours", "eager"]
    assert [one.seconds for one in eager] == [4.0, 5.0, 8.0]
    assert [one.seconds for one in ours] == [3.0, 6.0, 7.0]


def test_ratio_and_difference_are_medians_over_pairs_and_not_of_medians() -> None:
    found = compare([2.0, 30.0, 6.0], [1.0, 10.0, 4.0])
    assert (found["ratio_median"], found["ratio_range"], found["added_seconds"]) == (2.0, [1.5, 3.0], 2.0)


def test_bytecode_is_written_and_nothing_of_ours_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("AOT_FALLBACK", "raise")
    found = clean_environ(tmp_path, AOT_OFFLINE="1")
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert {name: value for name, value in found.items() if name.startswith("AOT_")} == {"AOT_OFFLINE": "1"}


def test_a_compiler_cache_below_a_path_with_a_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="white space"):
        clean_environ(tmp_path / "JIT, cold")


def test_the_processes_of_a_child_that_failed_are_not_counted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="invalid choice"):
        count_processes(["no-such-route", "minilm"], clean_environ(tmp_path))


def test_time_is_charged_to_the_innermost_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(load_profile.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(load_profile.time, "process_time", lambda: clock.now / 2)

    def work(seconds: float) -> None:
        clock.now += seconds

    steps = Steps()
    work(100.0)
    steps.enter(REST)
    work(1.0)
    steps.wrap("inner", work)(10.0)
    steps.note_collection("start", {})
    work(4.0)
    steps.note_collection("stop", {})
    work(2.0)
    steps.leave()
    work(100.0)
    steps.enter(REST)
    steps.leave()
    assert steps.wall == {REST: 3.0, "inner": 10.0, COLLECTIONS: 4.0}
    assert steps.cpu == {REST: 1.5, "inner": 5.0, COLLECTIONS: 2.0}
