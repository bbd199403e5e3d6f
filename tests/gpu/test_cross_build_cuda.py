"""A package's kernels lowered again from what it keeps: the same code for its own card, and right on a newer one.

There is one card here, so code for another is run as PTX for sm_80, which every newer card's driver compiles: a
wrapper loads PTX by the same call and under the same file name as a cubin (CUDA driver API, cuModuleLoad).
"""

import copy
import dataclasses
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from aot.compile.kernels.again import lower_kept
from aot.compile.kernels.kept import KeptKernel, KeptKernels, KeptReader, unpack_kept
from aot.compile.kernels.ptx import MOST_STATIC_BYTES, own_shared_memory
from aot.compile.kernels.run import compile_kept_kernels
from aot.compile.kernels.targets import TritonTarget, target_for
from aot.compile.run import Compiled
from aot.facts import read_cubin
from aot.runtime.container import Container
from aot.schema.artifact import Artifact
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.gpu.test_compile_cuda import this_card
from tests.integration import compiled as builds

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

# A norm and a softmax take shared memory for their sums.
SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.second = nn.Linear(512, 512)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.norm(self.first(x)))
        return torch.softmax(self.second(hidden), dim=-1)


def make():
    return {"module": Net(), "args": (torch.randn(64, 256),)}
"""
OLDEST = "cuda:sm_80"


@cache
def built(mode: Mode) -> tuple[Compiled, builds.Source]:
    place = builds.scratch_directory(f"cross-{mode}")
    source = builds.write_source(place / "tree", SOURCE)
    compiled = builds.build(
        source,
        place / "scratch",
        profile=this_card(),
        # Asked for, so that no untuned build may win: Triton's products are among the kernels where they are faster.
        recipe=Recipe(mode=mode, options={"coordinate_descent_tuning": True} if mode.tunes else {}),
        limits=Limits(memory_bytes=32 << 30, wall_seconds=500),
        shared=builds.shared_headers(),
    )
    return compiled, source


MODES = (Mode.DEFAULT, Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS)


def kept_of(compiled: Compiled, artifact: Artifact) -> KeptKernels:
    assert artifact.kept is not None, compiled.report.warnings
    cubins = [file.path for file in artifact.files if file.path.startswith("cubin/")]
    names = KeptReader(compiled.paths).names(artifact.kept.digest, cubins)
    kept = unpack_kept(compiled.paths[artifact.kept.digest].read_bytes(), most_kernels=len(cubins))
    assert names == {(kernel.path, kernel.name) for kernel in kept.kernels}
    return kept


def agrees_with_eager(compiled: Compiled, source: builds.Source, cubins: Path) -> bool:
    """Run the package with the kernels in `cubins` in its own kernels' place."""
    [artifact] = compiled.artifacts
    module = builds.open_module(source, seed=5).module.cuda()
    eager = copy.deepcopy(module)
    # A path of its own: what was mapped before could have kept the kernels that it loaded.
    library = Path(shutil.copyfile(builds.library_of(compiled, 0), cubins / "model.so"))
    container = Container.open(library, device="cuda:0", cubins=cubins)
    tensors = builds.constants_for(compiled, artifact, module)
    container.bind({name: tensor.cuda() for name, tensor in tensors.items()} | dict(module.named_buffers()))
    x = torch.randn(64, 256, device="cuda")
    results = [container.run((x,))[0] for _ in range(2)]
    return all(torch.allclose(result, eager(x), rtol=1e-3, atol=1e-4) for result in results)


@pytest.mark.parametrize("mode", MODES)
def test_a_build_on_a_card_keeps_all_of_its_kernels_in_little_room(mode: Mode) -> None:
    compiled, _ = built(mode)
    for artifact in compiled.artifacts:
        kept = kept_of(compiled, artifact)
        names = {(kernel.path, kernel.name) for kernel in artifact.binaries if kernel.path.startswith("cubin/")}
        assert names == {(kernel.path, kernel.name) for kernel in kept.kernels}
        assert kept.triton == this_card().toolchain.triton
        assert artifact.kept is not None
        assert artifact.kept.size_bytes < sum(file.size_bytes for file in artifact.files) // 20


@pytest.mark.parametrize("mode", MODES)
def test_lowered_for_its_own_card_a_kernel_takes_what_it_took(mode: Mode, tmp_path: Path) -> None:
    compiled, source = built(mode)
    [artifact] = compiled.artifacts
    assert artifact.kept is not None
    again = compile_kept_kernels(
        [compiled.paths[artifact.kept.digest]],
        this_card(),
        scratch=tmp_path / "scratch",
        limits=Limits(memory_bytes=16 << 30, wall_seconds=300),
        sandbox=None,
    )
    before = {kernel.path: kernel for kernel in artifact.binaries if kernel.path.startswith("cubin/")}
    after = {kernel.path: kernel for one in again.artifacts for kernel in one.binaries}
    assert {path: (one.name, one.capability, one.registers, one.shared_bytes) for path, one in after.items()} == {
        path: (one.name, one.capability, one.registers, one.shared_bytes) for path, one in before.items()
    }
    for one in again.artifacts:
        for file in one.files:
            shutil.copyfile(again.paths[file.digest], tmp_path / Path(file.path).name)
            assert read_cubin(again.paths[file.digest]).sm == artifact.capability.target
    assert agrees_with_eager(compiled, source, tmp_path)


def write_ptx(kept: KeptKernels, place: Path, target: TritonTarget, rewrite: Callable[[KeptKernel, int], bool]) -> int:
    """Write each kernel's PTX under its cubin's name; return how many reserve their shared memory themselves."""
    rewritten = 0
    for kernel in kept.kernels:
        lowered = lower_kept(kernel, target, build=place)
        ptx = lowered.ptx
        if rewrite(kernel, lowered.shared_bytes):
            ptx, rewritten = own_shared_memory(ptx, needed=lowered.shared_bytes), rewritten + 1
        (place / Path(kernel.path).name).write_text(ptx)
    return rewritten


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [False, True], ids=["as launched", "own shared memory"])
def test_code_for_an_older_card_is_right_on_this_one(
    mode: Mode, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    card = this_card()
    if int(card.capability.target.removeprefix("sm_")) <= 80:
        pytest.skip("this card is none newer than sm_80")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    compiled, source = built(mode)
    [artifact] = compiled.artifacts
    limit = target_for(card.capability).shared_bytes
    # The launch is on this card, so what it may ask for is what this card has.
    target = dataclasses.replace(target_for(OLDEST), shared_bytes=limit)

    def rewrite(kernel: KeptKernel, needed: int) -> bool:
        fits = needed <= MOST_STATIC_BYTES and kernel.shared_bytes + needed <= limit
        return needed > kernel.shared_bytes or (own and needed > 0 and fits)

    place = tmp_path / "ptx"
    place.mkdir()
    rewritten = write_ptx(kept_of(compiled, artifact), place, target, rewrite)
    assert rewritten > 0 or not own, "the norm takes shared memory"
    assert agrees_with_eager(compiled, source, place)
