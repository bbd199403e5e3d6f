"""Loading kernels: nothing here runs them, and the reason says which loader is missing."""

from pathlib import Path

import pytest
from torch import nn, ones

from aot.bundle import write_bundle
from aot.errors import BindingFailed
from aot.runtime.load import load_bundle
from aot.schema.capability import Capability
from aot.schema.environment import Environment
from aot.schema.manifest import Manifest
from tests.builders import BYTES, a_gpu, a_node, an_environment
from tests.kernel_builders import a_kernel_manifest


def write(place: Path, manifest: Manifest) -> Path:
    files = {}
    for blob in manifest.blobs:
        files[blob.digest] = place / blob.digest.hex
        files[blob.digest].write_bytes(BYTES[blob.digest])
    return write_bundle(place / "bundle", manifest=manifest, files=files).directory


def a_host(capability: str) -> Environment:
    return an_environment(node=a_node(gpus=(a_gpu(capability=Capability(capability)),), driver="580.65.06"))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("rocm:gfx942", "no loader for rocm: an artifact for rocm:gfx942 is stored, not run"),
        ("cuda:sm_90", "route kernel holds code objects for a driver, no module: fetch them as a bundle"),
    ],
)
def test_kernels_are_not_loaded_and_the_module_runs_eagerly(tmp_path: Path, target: str, reason: str) -> None:
    directory = write(tmp_path, a_kernel_manifest(target))
    module = nn.Linear(2, 2)
    model = load_bundle(directory, module, environment=a_host(target))
    assert reason in model.reasons
    given = ones(1, 2)
    assert (model(given) == module(given)).all()
    with pytest.raises(BindingFailed, match=reason[:20]):
        load_bundle(directory, module, environment=a_host(target), fallback="raise")
