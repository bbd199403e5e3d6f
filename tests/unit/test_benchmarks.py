"""The benchmarks' own bookkeeping: what is compared with what, and that a failed run is no measurement."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import load_profile
from benchmarks.bytecode import ratios
from benchmarks.cold_start import compare, start_pairs
from benchmarks.load_profile import COLLECTIONS, REST, Steps
from benchmarks.starts import ROOT, Start, clean_environ, count_processes
from tests.commands import processes_naming


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


def test_bytecode_is_compared_round_by_round() -> None:
    times = {
        "eager": {"without": [4.0, 40.0, 6.0], "with": [2.0, 10.0, 6.0], "own": [2.0, 10.0, 3.0]},
        "ours": {"without": [3.0, 3.0, 3.0], "with": [1.0, 20.0, 3.0], "own": [1.0, 20.0, 1.0]},
    }
    assert ratios(times) == {
        "eager: with/without": 0.5,
        "ours: with/without": 1.0,
        "eager: with/own": 1.0,
        "ours: with/own": 1.0,
        "ours with/eager without": 0.5,
    }


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


CONFINED = """
import os, subprocess, sys, tempfile
from pathlib import Path
from benchmarks import confined

confined.ENDING_SECONDS = 0.5
place = Path(sys.argv[1])
try:
    with confined.leaving_nothing(place):
        places = [Path.home(), Path(tempfile.mkdtemp()), Path(os.environ["XDG_CACHE_HOME"])]
        assert all(place in path.parents for path in places), places
        # A process of another session, whose parent is gone.
        subprocess.run(["sh", "-c", sys.argv[2]], check=True)
finally:
    assert not any(place in Path(path).parents for path in (Path.home(), tempfile.gettempdir()))
"""


def run_confined(place: Path, command: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", CONFINED, str(place), command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def test_a_run_whose_processes_have_ended_passes(tmp_path: Path) -> None:
    ran = run_confined(tmp_path / "place", "(setsid sleep 0.2 &)")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_process_that_outlives_the_run_is_named_and_ended(tmp_path: Path) -> None:
    is_there = """[ "$(tr -d '\\0' < /proc/$!/cmdline)" = sleep314 ]"""  # not only the shell that becomes it
    ran = run_confined(tmp_path / "place", f"setsid sleep 314 >/dev/null 2>&1 & until {is_there}; do sleep 0.02; done")
    assert ran.returncode == 1
    assert "RuntimeError: 1 process(es) outlived the run and were killed: sleep 314" in ran.stderr
    assert processes_naming(str(tmp_path)) == []
