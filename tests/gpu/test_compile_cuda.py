"""A real build for a card: kernels as files of their own, weights outside, guards for its host."""

import copy
from functools import cache

import pytest
import torch
from msgspec import structs

from aot.compile.run import Compiled
from aot.environment import observe_environment
from aot.facts import read_cubin
from aot.runtime.container import Container
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability
from aot.schema.measured import Measured, candidates_of, clocks_of, contest_of
from aot.schema.names import Name
from aot.schema.profile import Device, Profile
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.integration import compiled as builds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
]

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.second = nn.Linear(512, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        return self.second(torch.nn.functional.gelu(self.first(x))) * scale + self.calls


def make():
    return {"module": Net(), "args": (torch.randn(64, 256),), "dimensions": {"batch": (1, 128)},
            "dynamic_shapes": {"x": {0: "batch"}}}
"""


def this_card() -> Profile:
    toolchain = builds.observe_toolchain().toolchain
    properties = torch.cuda.get_device_properties(0)
    return Profile(
        name=Name("card"),
        capability=Capability(f"cuda:sm_{properties.major}{properties.minor}"),
        toolchain=toolchain,
        device=Device(
            sku=properties.name,
            sm_count=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
        ),
    )


@cache
def built(*, contested: bool = False) -> tuple[Compiled, builds.Source]:
    """One build, tuned whatever comes of it, or `contested` by an untuned one."""
    place = builds.scratch_directory("contested" if contested else "card")
    source = builds.write_source(place / "tree", SOURCE)
    options = {} if contested else {"coordinate_descent_tuning": True}
    compiled = builds.build(
        source,
        place / "scratch",
        profile=this_card(),
        recipe=Recipe(mode=Mode.MAX_AUTOTUNE, options=options),
        limits=Limits(memory_bytes=32 << 30, wall_seconds=500),
        shared=builds.shared_headers(),
    )
    return compiled, source


def test_the_tuned_build_is_compared_with_an_untuned_one_on_the_card() -> None:
    compiled, _ = built(contested=True)
    (said,) = [text for text in compiled.report.warnings if "us untuned" in text]
    artifact = compiled.artifacts[0]
    kept = said.endswith("the tuned build is kept")
    assert any(kernel.candidates > 1 for kernel in artifact.kernels) == kept
    contest = contest_of(artifact)
    assert contest is not None and contest.kept_untuned is not kept
    tuned = artifact if kept else structs.replace(artifact, kernels=contest.kernels, facts=dict(contest.facts))
    require_candidates(tuned)


def require_candidates(artifact: Artifact) -> None:
    """Every tuned kernel has all of its candidates' times, by configuration, and the card's clocks then."""
    found = candidates_of(artifact)
    assert found
    for number, times in found.items():
        kernel = artifact.kernels[int(number)]
        assert (len(times), next(iter(times.values()))) == (kernel.candidates, kernel.best_us)
    assert any("BLOCK_M=" in name for times in found.values() for name in times)
    assert clocks_of(artifact, Measured.TUNING).keys() <= found.keys()


def test_kernels_are_files_of_their_own_for_this_architecture() -> None:
    compiled, _ = built()
    for artifact in compiled.artifacts:
        cubins = [compiled.paths[file.digest] for file in artifact.files if file.path.startswith("cubin/")]
        assert cubins
        assert {f"cuda:{read_cubin(path).sm}" for path in cubins} == {artifact.capability}
        assert this_card().capability.runs(artifact.capability)


def test_the_host_guards_name_runtime_driver_and_card() -> None:
    compiled, _ = built()
    guards = {guard.kind: guard.value for guard in compiled.artifacts[0].host_guards}
    assert guards["cuda"] == torch.version.cuda
    assert guards["sku"] == torch.cuda.get_device_name(0)
    assert guards["driver"]
    observed = observe_environment()
    assert observed.node.gpus


def test_tuning_is_recorded_and_a_graph_is_to_be_captured() -> None:
    compiled, _ = built()
    artifact = compiled.artifacts[0]
    assert artifact.facts["cuda_graphs"] == "capture"
    assert any(kernel.candidates > 1 and kernel.best_us for kernel in artifact.kernels)
    require_candidates(artifact)


@pytest.mark.parametrize("rows", [2, 64, 128])
def test_other_weights_come_out_right_over_two_calls(rows: int) -> None:
    compiled, source = built()
    index = next(
        place
        for place, artifact in enumerate(compiled.artifacts)
        if artifact.coverage.dimensions[0].low <= rows <= (artifact.coverage.dimensions[0].high or rows)
    )
    artifact = compiled.artifacts[index]
    module = builds.open_module(source, seed=rows).module.cuda()
    eager = copy.deepcopy(module)
    library = builds.library_of(compiled, index)
    container = Container.open(library, device="cuda:0", cubins=library.parents[1] / "cubin")
    tensors = builds.constants_for(compiled, artifact, module)
    container.bind({name: tensor.cuda() for name, tensor in tensors.items()} | dict(module.named_buffers()))
    for _ in range(2):
        x = torch.randn(rows, 256, device="cuda")
        assert torch.allclose(container.run((x,))[0], eager(x), rtol=1e-3, atol=1e-3)
    assert module.calls.item() == 2
