"""CUTLASS alone as the backend of a tuned product, built and run on the card: candidates, machine code, and results."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch

from aot.compile.cutlass import CUTLASS_DIR, check_cutlass
from aot.compile.run import Compiled
from aot.errors import BackendFailed
from aot.facts.targets import library_targets
from aot.runtime.load import load_bundle
from aot.schema.measured import candidates_of
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.gpu.test_compile_cuda import this_card
from tests.integration import compiled as builds

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(512, 512)

    def forward(self, x):
        return torch.relu(self.only(x))


def make():
    return {"module": Net().to(torch.bfloat16), "args": (torch.randn(256, 512, dtype=torch.bfloat16),)}
"""
# Of Hopper's configurations two that CUTLASS's own examples use: one tile, clusters of two either way.
HOPPERS = "128x128x64_.*_align8_warpspecialized_cooperative_epi_tma"


def on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


# Where nothing else may be chosen; `coordinate_descent_tuning` keeps the tuned build, whatever an untuned one takes.
RECIPE = Recipe(
    mode=Mode.MAX_AUTOTUNE,
    options={
        "max_autotune_gemm_backends": "CUTLASS",
        "cutlass.cutlass_max_profiling_configs": 2,
        **({"cutlass.cutlass_op_allowlist_regex": HOPPERS} if on_hopper() else {}),
        "coordinate_descent_tuning": True,
    },
)
LIMITS = Limits(memory_bytes=32 << 30, wall_seconds=560)


def build(name: str) -> tuple[Compiled, builds.Source]:
    place = builds.scratch_directory(name)
    source = builds.write_source(place / "tree", SOURCE)
    compiled = builds.build(
        source, place / "scratch", profile=this_card(), recipe=RECIPE, limits=LIMITS, shared=builds.shared_headers()
    )
    return compiled, source


@cache
def built() -> tuple[Compiled, builds.Source]:
    try:
        check_cutlass(RECIPE, this_card())
    except BackendFailed as refusal:
        pytest.skip(refusal.message)
    return build("cutlass")


def test_without_cutlass_the_build_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CUTLASS_DIR, str(tmp_path))
    with pytest.raises(BackendFailed, match="names CUTLASS, and this worker has none"):
        build("cutlass-refused")


def test_every_candidate_is_cutlass_and_one_is_the_choice() -> None:
    compiled, _ = built()
    (artifact,) = compiled.artifacts
    (times,) = candidates_of(artifact).values()
    assert times and all(name.startswith("cutlass") and "(cutlass" in name for name in times)
    assert any(time is not None for time in times.values())
    (chosen,) = [kernel for kernel in artifact.kernels if kernel.best_us]
    assert chosen.choice.startswith("cutlass_")
    assert compiled.report.toolchain["cutlass"][0].isdigit()


def test_its_kernel_is_in_the_library_and_listed_for_this_card() -> None:
    compiled, _ = built()
    (artifact,) = compiled.artifacts
    targets = {one for images in library_targets(builds.library_of(compiled, 0)) for one in images}
    assert targets and all(this_card().capability.runs(one) for one in targets)
    assert artifact.capability in targets
    inside = [kernel for kernel in artifact.binaries if kernel.path.startswith("lib/") and "cutlass" in kernel.name]
    assert {kernel.capability for kernel in inside} == targets
    assert all(kernel.registers for kernel in inside)


def test_the_bundle_loads_elsewhere_and_computes_what_eager_does(tmp_path: Path) -> None:
    compiled, source = built()
    bundle = builds.bundle_of(compiled, tmp_path, name="net", profile=this_card(), recipe=RECIPE, limits=LIMITS)
    module = builds.open_module(source, seed=7).module.cuda()
    eager = copy.deepcopy(module)
    model = load_bundle(bundle.directory, module, fallback="raise")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(256, 512, dtype=torch.bfloat16, device="cuda")
            torch.testing.assert_close(model(x), eager(x), rtol=2e-2, atol=2e-2)
    assert model.counters["compiled"] == 3
    (report,) = model.graphs[""]
    assert report.reason == ""
