"""A stored and signed bundle, and the bytes of its blobs."""

from pathlib import Path

import pytest

from aot.bundle import write_bundle
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest
from tests.builders import BYTES
from tests.unit.bundle.bundles import signed, two_artifacts


@pytest.fixture
def bytes_of(tmp_path):
    """Where the bytes of every builder's blob are."""

    def paths(manifest: Manifest) -> dict[Digest, Path]:
        directory = tmp_path / "made"
        directory.mkdir(exist_ok=True)
        found = {}
        for blob in manifest.blobs:
            found[blob.digest] = directory / blob.digest.hex
            found[blob.digest].write_bytes(BYTES[blob.digest])
        return found

    return paths


@pytest.fixture
def stored(tmp_path, bytes_of):
    manifest = two_artifacts()
    return write_bundle(tmp_path / "bundle", manifest=manifest, files=bytes_of(manifest), envelope=signed(manifest))
