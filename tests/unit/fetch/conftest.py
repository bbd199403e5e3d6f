"""A registry in memory, a cache, and a node between them."""

from pathlib import Path

import pytest

from aot.cache import LocalCache
from tests.simulator import RegistrySimulator
from tests.unit.fetch.nodes import Node


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    return LocalCache(tmp_path / "cache")


@pytest.fixture
def node(simulator: RegistrySimulator, cache: LocalCache) -> Node:
    return Node(simulator, cache)
