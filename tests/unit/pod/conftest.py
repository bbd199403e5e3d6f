"""A registry in memory, a pod's configuration for it, and the loader that notes what reaches it."""

from pathlib import Path

import pytest

from aot.config import Config
from aot.runtime import pod
from tests.builders import an_environment
from tests.simulator import RegistrySimulator
from tests.unit.pod.pods import Loads


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads()
    monkeypatch.setattr(pod, "load_artifacts", loads)
    return loads


@pytest.fixture
def config(simulator: RegistrySimulator, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("aot.client.connect.open_client", lambda *_, **__: simulator.client())
    monkeypatch.setattr(pod, "observe_environment", an_environment)
    return Config(
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        url="http://registry.test",
        token="a-token",
        trusted_keys=(str(simulator.key.public),),
        receipts=False,
    )
