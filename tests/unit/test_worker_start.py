"""What a worker says at start of its proofs for lower levels."""

import logging
from pathlib import Path

import pytest

from aot.emulator import EmulatedCpu, Emulator, NoEmulator
from aot.schema.capability import Capability
from tests.builders import a_profile
from worker import app


def tell(found: Emulator | NoEmulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> str:
    monkeypatch.setattr(app, "find_emulator", lambda capability: found)
    with caplog.at_level(logging.INFO, logger="worker"):
        app.tell_emulator(a_profile())
    (record,) = caplog.records
    return f"{record.levelname} {record.getMessage()}"


def test_an_emulator_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cpu = EmulatedCpu(capability=Capability("cpu:x86-64-v3"), model="Haswell (emulated)", features=())
    found = Emulator(program=tmp_path / "qemu", version="qemu-x86_64 7.2.22", cpu=cpu, model="Haswell")
    assert tell(found, monkeypatch, caplog) == (
        "INFO emulator profile=cpu-v3 program=qemu-x86_64 7.2.22 cpu=Haswell (emulated)"
    )


def test_that_there_is_none_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert tell(NoEmulator("not installed"), monkeypatch, caplog) == (
        "WARNING no-emulator profile=cpu-v3 reason=not installed"
    )
