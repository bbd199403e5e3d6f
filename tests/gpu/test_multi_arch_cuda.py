"""Kernels as fat binaries, built and run on the card: the files, the guards that come of them, and the results."""

import copy
from functools import cache

import pytest
import torch

from aot.compile.multi_arch import MULTI_ARCH, find_toolkit
from aot.compile.run import Compiled
from aot.errors import BackendFailed
from aot.facts.targets import fallback_of, machine_targets
from aot.runtime.container import Container
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.gpu.test_compile_cuda import SOURCE, this_card
from tests.integration import compiled as builds

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def build(name: str) -> tuple[Compiled, builds.Source]:
    place = builds.scratch_directory(name)
    source = builds.write_source(place / "tree", SOURCE)
    compiled = builds.build(
        source,
        place / "scratch",
        profile=this_card(),
        recipe=Recipe(mode=Mode.DEFAULT, options={MULTI_ARCH: True}),
        limits=Limits(memory_bytes=32 << 30, wall_seconds=500),
        shared=builds.shared_headers(),
    )
    return compiled, source


@cache
def built() -> tuple[Compiled, builds.Source]:
    if find_toolkit() is None:
        pytest.skip("no CUDA toolkit on this machine: nvcc packs fat binaries")
    return build("multi-arch")


def test_without_the_toolkit_the_build_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.multi_arch.find_toolkit", lambda **_: None)
    with pytest.raises(BackendFailed, match="needs nvcc of the CUDA toolkit"):
        build("multi-arch-refused")


def test_every_kernel_is_a_fat_binary_for_this_card() -> None:
    compiled, _ = built()
    for artifact in compiled.artifacts:
        kernels = [file for file in artifact.files if file.path.startswith("cubin/")]
        assert kernels and all(file.path.endswith(".fatbin") for file in kernels)
        for file in kernels:
            targets = machine_targets(file.path, compiled.paths[file.digest])
            assert any(this_card().capability.runs(one) for one in targets)
        assert {kernel.path for kernel in artifact.binaries} >= {file.path for file in kernels}


def test_the_guards_say_what_the_ptx_is_worth() -> None:
    compiled, _ = built()
    for number, artifact in enumerate(compiled.artifacts):
        kernels = [
            (file.path, compiled.paths[file.digest]) for file in artifact.files if file.path.startswith("cubin/")
        ]
        fallback = fallback_of(kernels, library=builds.library_of(compiled, number))
        guards = {guard.kind: guard.value for guard in artifact.host_guards}
        if fallback is None:
            # From sm_90 on Triton's PTX is for one architecture alone.
            assert torch.cuda.get_device_capability() >= (9, 0)
            assert (guards["capability"], "fallback" in guards) == (artifact.capability, False)
        else:
            assert guards["capability"] == f"{artifact.capability} {fallback.capability}"
            assert guards["fallback"].endswith(fallback.ptx)
    assert any(text.startswith(f"option {MULTI_ARCH}: ") for text in compiled.report.warnings)


def test_it_computes_what_eager_does() -> None:
    compiled, source = built()
    artifact = compiled.artifacts[0]
    rows = artifact.coverage.dimensions[0].low or 1
    module = builds.open_module(source, seed=3).module.cuda()
    eager = copy.deepcopy(module)
    library = builds.library_of(compiled, 0)
    container = Container.open(library, device="cuda:0", cubins=library.parents[1] / "cubin")
    tensors = builds.constants_for(compiled, artifact, module)
    container.bind({name: tensor.cuda() for name, tensor in tensors.items()} | dict(module.named_buffers()))
    x = torch.randn(rows, 256, device="cuda")
    assert torch.allclose(container.run((x,))[0], eager(x), rtol=1e-3, atol=1e-3)
