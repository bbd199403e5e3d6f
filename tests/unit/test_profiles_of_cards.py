"""The profile that a worker on a card is, from recorded hosts: the whole card, a slice of it, the first of two."""

from pathlib import Path

import pytest

from aot.keys import measurements_key, queue_for
from aot.pipeline import profiles
from aot.pipeline.profiles import observe_profiles
from aot.rules.profile import profile_guards
from aot.schema.codec import decode
from aot.schema.decision import Accepted, Level
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.select import judge_guards
from tests.builders import a_toolchain

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
WHOLE, SLICE, TWO = "aws-p5-48xlarge-driver-580-torch-2.13-cu130", "gcp-a3-mig-1g-10gb-slice", "gcp-a3-mig-two-slices"


def a_host(name: str) -> Environment:
    return decode((HOSTS / f"{name}.json").read_bytes(), Environment, what=name)


@pytest.fixture(autouse=True)
def toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a worker on a card: this machine's has no CUDA."""

    class Observed:
        toolchain = a_toolchain(torch="2.13.0+cu130", cuda="13.0", triton="3.7.0")

    monkeypatch.setattr(profiles, "observe_toolchain", lambda: Observed)


def profile_of(name: str) -> Profile:
    (found,) = observe_profiles(a_host(name))
    return found


def test_a_slice_is_a_profile_of_its_own() -> None:
    whole, part = profile_of(WHOLE), profile_of(SLICE)
    assert (whole.name, part.name) == ("h100-80gb-hbm3", "h100-80gb-hbm3-mig-1g-10gb")
    assert whole.device is not None and part.device is not None
    assert (part.device.sku, part.device.sm_count, part.device.mig) == (whole.device.sku, 16, "1g.10gb")
    assert part.device.memory_bytes < whole.device.memory_bytes / 7
    assert queue_for(whole) != queue_for(part)
    assert measurements_key(whole) != measurements_key(part)


def test_of_several_slices_a_worker_is_the_first() -> None:
    first, second = a_host(TWO).node.gpus or ()
    found = profile_of(TWO)
    assert found.device is not None and found.device.mig == first.mig
    assert first.mig and found.name.endswith(f"-mig-{first.mig.replace('.', '-')}")
    assert second.mig


@pytest.mark.parametrize(
    ("built_on", "runs_on", "notes"),
    [
        (SLICE, SLICE, []),
        (WHOLE, SLICE, ["sm_count", "mig"]),
        (SLICE, WHOLE, ["sm_count", "mig"]),
    ],
)
def test_what_was_tuned_on_one_runs_on_the_other_and_says_so(built_on: str, runs_on: str, notes: list[str]) -> None:
    values = profile_guards(profile_of(built_on))
    guards = tuple(
        HostGuard(kind=kind, value=value)
        for kind, value in values.items()
        if kind in ("capability", "sku", "sm_count", "mig")
    )
    verdict = judge_guards(guards, a_host(runs_on))
    assert isinstance(verdict, Accepted)
    assert [note.kind for note in verdict.notes] == notes
    assert verdict.level is (Level.TUNED_ELSEWHERE if notes else Level.FITS)
