"""What is left for later is done some seconds after a load, or at the end of a process that lives no longer."""

import subprocess
import sys
import time

import pytest

from aot.runtime import later
from aot.runtime.later import Task, run_later

SCRIPT = """
import sys, time
from aot.runtime.later import Task, run_later

def say(text):
    print(text, flush=True)

run_later([Task(lambda: say("left")), Task(lambda: {told}, at_exit=True)])
say("work")
{end}
"""


def output_of(*, told: str = 'say("told")', end: str = "") -> tuple[int, list[str], float]:
    """Exit code, lines, and seconds of a process that leaves two tasks for later."""
    started = time.monotonic()
    script = SCRIPT.format(told=told, end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" or end, done.stderr
    return done.returncode, done.stdout.splitlines(), time.monotonic() - started


def test_a_process_that_ends_first_does_what_must_not_be_lost_and_nothing_else() -> None:
    code, lines, seconds = output_of()
    assert (code, lines) == (0, ["work", "told"])
    assert seconds < later.LATER_SECONDS


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)"])
def test_it_is_done_also_where_the_process_ends_on_an_error_of_its_own(end: str) -> None:
    assert output_of(end=end)[:2] == (3, ["work", "told"])


def test_a_registry_that_does_not_answer_keeps_no_process() -> None:
    code, lines, seconds = output_of(told="time.sleep(30)")
    assert (code, lines) == (0, ["work"])
    assert seconds < later.EXIT_SECONDS + 5


def test_a_child_that_was_forked_does_it_not_once_more() -> None:
    end = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    assert output_of(end=end)[1] == ["work", "told"]


def test_everything_is_done_after_some_seconds_and_then_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    forgotten: list[object] = []
    monkeypatch.setattr(later, "LATER_SECONDS", 0.05)
    monkeypatch.setattr("atexit.unregister", forgotten.append)
    run_later([Task(lambda: done.append("left")), Task(lambda: done.append("told"), at_exit=True)])
    assert done == []
    deadline = time.monotonic() + 10
    while not forgotten and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done == ["left", "told"]
    [at_exit] = forgotten
    at_exit()  # type: ignore[operator]
    assert done == ["left", "told"]


def test_a_task_that_fails_loses_no_other() -> None:
    code, lines, _ = output_of(
        told="1 / 0 or say('never')", end="run_later([Task(lambda: say('second'), at_exit=True)])"
    )
    assert (code, "second" in lines) == (0, True)


def test_within_one_load_a_failing_task_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    later._run(Task(lambda: [][1]))  # type: ignore[arg-type, return-value]
    later._run(Task(lambda: done.append("next")))
    assert done == ["next"]
    assert "what a load left to be done failed" in caplog.text
