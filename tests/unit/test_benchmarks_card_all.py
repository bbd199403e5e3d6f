"""A plan of a card: what runs beside each other, what alone, and what is ended when the time is over."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import card_all
from benchmarks.card_all import DEFAULT_STEPS, Step, begin, end_by, main
from benchmarks.models import CARD, DEEP


class Calls:
    """In place of all processes of a plan: notes each command, and which were begun before another had ended."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.ended: list[int] = []

    def begin(self, words: list[str], log: Path) -> int:
        self.commands.append(words)
        return len(self.commands) - 1

    def end_by(self, call: int, until: float) -> int:
        self.ended.append(len(self.commands))
        return 0


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()
    monkeypatch.setattr(card_all, "begin", made.begin)
    monkeypatch.setattr(card_all, "end_by", made.end_by)
    monkeypatch.setattr(card_all, "prove_toolchain", lambda data: None)
    monkeypatch.setattr(card_all, "card_host", lambda device: {"torch": "2.13.0"})
    monkeypatch.setattr(card_all, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return made


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["card_all", "--data", str(tmp_path / "data"), "--device", "cpu", *words])
    return main()


def test_builds_second_builds_and_tests_go_at_once_and_rows_one_after_the_other(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("bert:ours:8", "bert:jit:1:1", "resnet50:second-build:1:1", "vit:ours,jit")
    assert run(monkeypatch, tmp_path, "--tests", *steps) == 0
    at_once, alone = calls.commands[:4], calls.commands[4:]
    assert calls.ended == [4, 4, 4, 4, 5, 6, 7]
    assert [value(one, "--models") for one in at_once[:2]] == ["bert", "vit"]
    assert all("--only-build" in one for one in at_once[:2])
    assert value(at_once[2], "--label") == "cpu-torch-2.13.0-resnet50-second-build"
    assert at_once[3][2] == "benchmarks.card_host"
    found = [[value(one, f"--{name}") for name in ("models", "rows", "pairs", "batches")] for one in alone]
    assert found == [["bert", "ours", "8", "1,16"], ["bert", "jit", "1", "1"], ["vit", "ours,jit", "5", "1,16"]]
    # A model's steps start from what its build has left; a second build shares nothing.
    places = [value(one, "--data").rpartition("/")[2] for one in [*at_once[:3], *alone]]
    assert places == ["bert", "vit", "resnet50-second-build", "bert", "bert", "vit"]


def test_no_step_is_begun_when_the_time_is_over(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--seconds", "-1", "bert:jit") == 0
    assert calls.commands == [] and "bert-jit: not begun, the time was over" in capsys.readouterr().out


def test_results_of_second_builds_are_joined_to_the_cards_file(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[Any] = []
    monkeypatch.setattr(card_all.subprocess, "run", lambda words, **options: merged.append(words[2:]))
    left = tmp_path / "results" / "cpu-torch-2.13.0-decoder-second-build.json"
    left.write_text(json.dumps({}))
    assert run(monkeypatch, tmp_path, "decoder:second-build", "resnet50:second-build") == 0
    assert merged == [["benchmarks.merge", str(left)]] and not left.exists()


def test_every_default_step_is_one_that_the_benchmark_takes() -> None:
    from benchmarks.card import plan

    for step in map(Step.parse, DEFAULT_STEPS):
        assert plan([step.model], step.rows.split(",")), step
    assert {Step.parse(text).model for text in DEFAULT_STEPS} == {*CARD, *DEEP}


@pytest.mark.parametrize("text", ["bert", "bert:", ":ours", "bert:ours:5:1:more"])
def test_a_step_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted MODEL:ROWS"):
        Step.parse(text)


def test_what_is_interrupted_ends_with_all_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_all, "_GRACE_SECONDS", 0.2)
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    process = begin([sys.executable, "-c", program], log)
    while not log.read_text().strip():
        time.sleep(0.01)
    assert end_by(process, time.monotonic()) == -signal.SIGKILL
    while is_running(int(log.read_text())):
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Also False of one that has ended and was not waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_what_ends_in_time_keeps_its_own_exit_code(tmp_path: Path) -> None:
    assert end_by(begin([sys.executable, "-c", "raise SystemExit(7)"], tmp_path / "log"), time.monotonic() + 60) == 7
