"""Compiler caches on a node whose own cache cannot be written, or mapped from: restored, or told with the way out."""

import pytest

from aot.cache.faults import NOEXEC_HINT
from aot.capture.prepare import prepare
from aot.config import Config
from aot.schema.names import Reference
from tests.builders import an_environment
from tests.route_builders import a_capture_manifest
from tests.simulator import RegistrySimulator
from tests.unit.pod.pods import unwritable
from tests.unit.test_noexec import fake_mount

TRAINER = Reference.parse("default/trainer:latest")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.capture.prepare.observe_environment", an_environment)


def test_caches_that_are_all_there_are_restored_where_nothing_can_be_written(
    simulator: RegistrySimulator, config: Config
) -> None:
    digest = simulator.add(a_capture_manifest())
    first = prepare(TRAINER, config=config, environ={})
    assert (first.bundle, first.graphs) == (digest, 1), first.reasons
    unwritable(config)
    again = prepare(TRAINER, config=config, environ={})
    assert (again.bundle, again.directory, again.changes) == (digest, first.directory, first.changes), again.reasons


def test_what_is_not_there_and_cannot_be_written_is_a_reason_with_the_way_out(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(a_capture_manifest())
    config.cache_dir.mkdir()
    unwritable(config)
    found = prepare(TRAINER, config=config, environ={})
    [reason] = found.reasons
    assert found.directory is None and reason.startswith("could not store sha256:")
    assert reason.endswith("; try: set AOT_CACHE_DIR to a directory that this process may write")


def test_caches_on_a_file_system_mounted_noexec_are_not_restored_and_the_way_out_is_told(
    simulator: RegistrySimulator, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.add(a_capture_manifest())
    fake_mount(monkeypatch, below=config.cache_dir.parent)
    found = prepare(TRAINER, config=config, environ={})
    [reason] = found.reasons
    assert found.directory is None and "is on a file system mounted noexec" in reason and NOEXEC_HINT in reason
