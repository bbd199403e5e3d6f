"""The whole proof on a real build: everything that can go silently wrong with weights outside, proven right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from aot.bundle import StoredBundle
from aot.errors import QualificationFailed
from aot.qualify import Proof, qualify
from aot.runtime.constants import read_tensors
from aot.schema.artifact import Winner
from aot.schema.digest import Digest
from aot.schema.spec import File
from tests.builders import altered
from tests.integration import compiled as builds
from tests.integration.eager_starts import told_again

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def eager_starts() -> Iterator[None]:
    with told_again():
        yield


def prove(bundle: StoredBundle, source: Any, place: Path) -> Proof:
    return qualify(
        bundle.directory,
        source=source,
        spec=bundle.manifest.spec,
        profile=bundle.manifest.profile,
        scratch=place / "proof",
        sandbox=builds.sandbox(),
        limits=builds.LIMITS,
    )


def test_a_real_build_is_proven_at_every_boundary(tmp_path: Path) -> None:
    compiled, source = builds.everything()
    proof = prove(builds.bundle_of(compiled, tmp_path), source, tmp_path)
    start = proof.qualification.start
    assert start is not None
    assert (start.processes, start.compiler_modules, start.counted_by) == ((), (), "ptrace")
    perturbed = [one for one in proof.qualification.agreements if one.weights == "perturbed"]
    assert {one.point["batch"] for one in perturbed} >= {1, 8}
    assert {one.variant for one in perturbed} == {"", "second call"}
    assert all(one.agrees and one.reference == "float64" for one in proof.qualification.agreements)
    assert all(artifact.speeds and artifact.winner in Winner for artifact in proof.artifacts)
    assert [canary.artifact for canary in proof.canaries] == list(range(len(proof.artifacts)))
    inputs = read_tensors(proof.paths[proof.canaries[0].expected[0].digest])
    # What no seed can tell travels: integer buffers, besides the inputs themselves.
    assert {"input.0", "input.1", "constant.steps", "constant.positions"} == set(inputs)


def test_a_lifted_constant_that_is_not_the_programs_is_found(tmp_path: Path) -> None:
    compiled, source = builds.everything()
    files = dict(compiled.paths)
    artifacts = []
    for artifact in compiled.artifacts:
        stored = next(file for file in artifact.files if file.path.startswith("constants/"))
        tensors = load_file(files[stored.digest])
        tensors["gain"] = tensors["gain"] + torch.tensor([0.0, 0.0, 0.0, 0.01])
        target = tmp_path / f"{stored.digest.short}.safetensors"
        save_file(tensors, str(target))
        changed = File(path=stored.path, digest=Digest.of(target.read_bytes()), size_bytes=target.stat().st_size)
        files[changed.digest] = target
        others = tuple(file for file in artifact.files if file is not stored)
        artifacts.append(altered(artifact, files=(changed, *others)))
    bundle = builds.bundle_of(compiled, tmp_path, artifacts=tuple(artifacts), files=files)
    with pytest.raises(QualificationFailed, match="comparisons with eager fail"):
        prove(bundle, source, tmp_path)
