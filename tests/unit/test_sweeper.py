"""The sweeper goes on: nothing that one pass, or one step of it, meets ends what time does to the builds of others."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from aot.errors import InvalidConfig, StorageUnavailable
from registry import __main__ as registry
from registry.services import retention
from registry.services import sweep as sweep_service
from registry.settings import Settings

TURNS = 3
BUG = IntegrityError("DELETE FROM blobs", {}, Exception("a view refers to it"))
AWAY = StorageUnavailable("the store did not answer", hint="wait")
REFUSED = InvalidConfig("the store refuses the registry", hint="see its rights")


class Turns:
    """Stands for `Stop`: told to stop after TURNS passes."""

    def __init__(self) -> None:
        self.passed = 0

    @property
    def told(self) -> bool:
        return self.passed >= TURNS

    def listen(self) -> "Turns":
        return self

    def pause(self, seconds: float) -> None:
        self.passed += 1


@pytest.fixture
def sweeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], tuple[list[str], Any]]:
    """Passes of which the named one fails each time: which were made, and what was logged."""

    def run(failing: str, error: Exception) -> tuple[list[str], Any]:
        made: list[str] = []

        def one(name: str) -> Callable[[object], None]:
            def act(deps: object, **_: float) -> None:
                made.append(name)
                if name == failing:
                    raise error

            return act

        monkeypatch.setattr("registry.deps.build_deps", lambda settings: object())
        monkeypatch.setattr(sweep_service, "sweep", one("sweep"))
        monkeypatch.setattr(retention, "retain", one("retain"))
        monkeypatch.setattr(registry, "Stop", Turns)
        settings = replace(Settings.from_environ({"AOT_DATA_DIR": str(tmp_path)}), retain_every=timedelta(0))
        with capture_logs() as logged:
            registry.sweep(argparse.Namespace(once=False, every=0.0), settings)
        return made, [line for line in logged if str(line["event"]).endswith("-failed")]

    return run


@pytest.mark.parametrize("failing", ["sweep", "retain"])
def test_a_bug_in_a_pass_is_logged_with_its_traceback_and_the_next_turn_comes(sweeping: Any, failing: str) -> None:
    made, logged = sweeping(failing, BUG)
    assert made == ["sweep", "retain"] * TURNS
    assert [(line["event"], line["log_level"], line["exc_info"]) for line in logged] == [
        (f"{failing}-failed", "error", True)
    ] * TURNS


def test_a_service_that_is_away_is_one_line(sweeping: Any) -> None:
    made, logged = sweeping("sweep", AWAY)
    assert made == ["sweep", "retain"] * TURNS
    assert [(line["code"], line["log_level"], "exc_info" in line) for line in logged] == [
        ("storage-unavailable", "warning", False)
    ] * TURNS


def test_retention_that_was_not_given_the_time_goes_on_after_the_next_pass_over_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def retain(deps: object, *, seconds: float) -> retention.Retained:
        made.append(seconds)
        return retention.Retained(unfinished=len(made) < 4)

    monkeypatch.setattr("registry.deps.build_deps", lambda settings: object())
    monkeypatch.setattr(sweep_service, "sweep", lambda deps: made.append("sweep"))
    monkeypatch.setattr(retention, "retain", retain)
    monkeypatch.setattr(registry, "Stop", Turns)
    registry.sweep(argparse.Namespace(once=False, every=0.0), Settings.from_environ({"AOT_DATA_DIR": str(tmp_path)}))
    assert made == ["sweep", retention.SWEEPER_SECONDS, "sweep", retention.SWEEPER_SECONDS, "sweep"]


def test_retention_that_failed_does_not_wait_for_its_next_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is bounded, so that what one thing keeps from an end would fall behind by all that expires in an hour."""
    times: list[float] = []
    clock = [0.0]

    class Minutes(Turns):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            clock[0] += registry.RETAIN_AGAIN_SECONDS

    def retain(deps: object, *, seconds: float) -> retention.Retained:
        times.append(clock[0])
        if len(times) == 1:
            raise AWAY
        return retention.Retained()

    monkeypatch.setattr("registry.deps.build_deps", lambda settings: object())
    monkeypatch.setattr(sweep_service, "sweep", lambda deps: None)
    monkeypatch.setattr(retention, "retain", retain)
    monkeypatch.setattr(registry, "Stop", Minutes)
    monkeypatch.setattr(registry.time, "monotonic", lambda: clock[0])
    registry.sweep(argparse.Namespace(once=False, every=0.0), Settings.from_environ({"AOT_DATA_DIR": str(tmp_path)}))
    assert times == [0.0, registry.RETAIN_AGAIN_SECONDS]


def test_wrong_settings_end_the_process(sweeping: Any) -> None:
    with pytest.raises(InvalidConfig, match="refuses"):
        sweeping("sweep", REFUSED)


@pytest.mark.parametrize(
    ("errors", "raised"), [((BUG,), BUG), ((REFUSED, AWAY), REFUSED), ((AWAY, BUG), BUG), ((AWAY,), AWAY)]
)
def test_a_step_that_breaks_keeps_none_of_the_others_from_its_turn(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[Exception, ...], raised: Exception
) -> None:
    turns: list[object] = []

    def breaking(error: Exception) -> Callable[[object], None]:
        def act(deps: object) -> None:
            raise error

        return act

    steps = [(f"step {number}", breaking(error)) for number, error in enumerate(errors)]
    monkeypatch.setattr(sweep_service, "STEPS", (*steps, ("tokens", lambda deps: turns.append(deps) or 1)))
    deps: Any = object()
    with capture_logs() as logged, pytest.raises(type(raised)) as caught:
        sweep_service.sweep(deps)
    assert caught.value is raised and turns == [deps]
    told = [line["step"] for line in logged if line["event"] == "step-failed"]
    assert told == [name for (name, _), error in zip(steps, errors, strict=True) if error is not AWAY]
