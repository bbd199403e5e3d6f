"""Hand-written bundles."""

import pytest

from aot.bundle import StoredBundle
from aot.runtime.fingerprint import fingerprint
from tests.integration.compiled_model.scaled import scaled
from tests.integration.handmade import write_handmade


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    return write_handmade(tmp_path_factory.mktemp("whole"), fingerprint=fingerprint(scaled()))
