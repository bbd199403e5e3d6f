"""Real builds of the route `package`: what is in them, what is not, and that other weights come out right."""

import copy
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.layout import package_place
from aot.facts import find_absolute_paths, read_elf
from aot.facts.kernels import read_code_facts, read_kernels
from aot.schema.artifact import ConstantKind, CoverageKind, LeafKind
from aot.schema.recipe import Recipe, Route
from aot.schema.report import Phase
from aot.select import REQUIRED_GUARDS
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch


def test_an_artifact_records_everything_that_a_loader_needs() -> None:
    compiled, _ = builds.everything()
    (artifact,) = compiled.artifacts
    assert (artifact.region, artifact.instances, artifact.route) == ("", ("",), Route.PACKAGE)
    assert {file.path for file in artifact.files} == {"lib/model.so", "constants/constants.safetensors"}
    assert {guard.kind for guard in artifact.host_guards} >= REQUIRED_GUARDS[Route.PACKAGE]
    assert artifact.elf == read_elf(builds.library_of(compiled))
    assert artifact.call is not None
    assert artifact.call.parameters == ("x", "mask")
    assert [leaf.kind for leaf in artifact.call.outputs] == [LeafKind.TENSOR, LeafKind.INTEGER]
    assert [meta.shape for meta in artifact.inputs] == [("batch", 16), ("batch", 1)]
    assert artifact.facts["march"] == builds.here().capability.target


def test_kernels_and_instructions_are_read_from_the_library() -> None:
    compiled, _ = builds.everything()
    (artifact,) = compiled.artifacts
    library = builds.library_of(compiled)
    assert artifact.binaries == read_kernels([("lib/model.so", library)], artifact.capability)
    assert {kernel.name for kernel in artifact.binaries} == {
        kernel.name for kernel in artifact.kernels if kernel.name.startswith("cpp_")
    }
    assert all(kernel.size_bytes > 0 for kernel in artifact.binaries)
    assert artifact.code == read_code_facts(library)
    assert artifact.code.unread_bytes == 0
    assert artifact.code.cxx11_abi is True
    assert "aoti_torch_empty_strided" in artifact.code.torch_symbols


def test_the_coverage_is_the_whole_range_from_one() -> None:
    compiled, _ = builds.everything()
    (coverage,) = {artifact.coverage for artifact in compiled.artifacts}
    assert coverage.kind is CoverageKind.RANGE
    assert [(one.name, one.low, one.high) for one in coverage.dimensions] == [("batch", 1, 8)]


def test_every_constant_is_recorded_with_its_kind() -> None:
    compiled, _ = builds.everything()
    found = {meta.name: (meta.kind.value, meta.mutated) for meta in compiled.artifacts[0].constants}
    assert found == {
        "tied.weight": ("parameter", False),  # the last of its two names
        "first.bias": ("parameter", False),
        "back.weight": ("parameter", False),
        "second.weight": ("parameter", False),
        "second.bias": ("parameter", False),
        "temperature": ("parameter", False),
        "one": ("parameter", False),
        "calls": ("buffer", True),
        "steps": ("buffer", True),
        "positions": ("buffer", False),
        "gain": ("constant", False),
        "lifted_tensor_0": ("constant", False),
    }


def test_one_name_of_the_tied_weight_is_asked_for_and_the_other_noted() -> None:
    compiled, _ = builds.everything()
    tied = {"first.weight", "tied.weight"}
    (meta,) = [meta for meta in compiled.artifacts[0].constants if meta.name in tied]
    assert set(meta.aliases) == tied - {meta.name}


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_other_weights_come_out_right_over_two_calls(rows: int) -> None:
    compiled, source = builds.everything()
    program = builds.open_module(source, seed=rows + 100)
    eager = copy.deepcopy(program.module)
    container = builds.bound(compiled, program.module)
    for _ in range(2):
        x, mask = torch.randn(rows, 16), torch.rand(rows, 1)
        y, count = container.run((x, mask))
        expected = eager(x, mask=mask)
        assert torch.allclose(y, expected["y"], rtol=1e-4, atol=1e-4)
        assert int(count) == expected["rows"] == rows
    assert program.module.calls.item() == eager.calls.item() == 2
    assert program.module.steps.item() == 2


def test_changing_each_weight_changes_the_result_as_eager_does() -> None:
    compiled, source = builds.everything()
    program = builds.open_module(source, seed=7)
    x, mask = torch.randn(4, 16), torch.ones(4, 1)
    container = builds.bound(compiled, program.module)
    names = [meta.name for meta in compiled.artifacts[0].constants if meta.kind is ConstantKind.PARAMETER]
    for name in names:
        program.module.get_parameter(name).add_(0.25)
        expected = copy.deepcopy(program.module)(x, mask=mask)["y"]
        assert torch.allclose(container.run((x, mask))[0], expected, rtol=1e-4, atol=1e-4), name


def test_the_same_source_elsewhere_with_other_weights_gives_the_same_bytes(tmp_path: Path) -> None:
    first, _ = builds.everything()
    source = builds.write_source(tmp_path / "another place with a longer name")
    events: list[dict[str, str]] = []
    second = builds.build(
        source,
        tmp_path / "scratch" / "deeper",
        isolated=False,
        shared=builds.shared_headers(),
        seed=99,
        on_event=lambda event: events.append(dict(event)),
    )
    assert builds.library_of(second).read_bytes() == builds.library_of(first).read_bytes()
    assert second.artifacts == first.artifacts
    assert second.fingerprint == first.fingerprint
    told = [Phase.LOADING, Phase.LOADING, Phase.EXPORTING, Phase.EXPORTING, Phase.COMPILING]
    assert [event["phase"] for event in events if "phase" in event] == told
    assert events[-1]["step"] == "1 of 1: whole program, batch=1..8"


def test_no_path_of_the_builder_and_no_source_text_is_inside() -> None:
    compiled, source = builds.everything()
    library = builds.library_of(compiled)
    prefixes = [str(source.tree), str(library.parents[3]), sys.prefix, str(Path.home()), str(package_place().parent)]
    assert find_absolute_paths(library, prefixes) == ()
    content = library.read_bytes()
    assert not re.search(rb"#include|g\+\+ |-march=", content)
    assert {path.suffix for path in compiled.paths.values()} == {".so", ".safetensors"}


def test_the_report_says_what_was_done() -> None:
    compiled, _ = builds.everything()
    (region,) = compiled.report.regions
    assert region.coverage == "batch=1..8"
    assert region.flops and region.graph_nodes
    assert 0 < region.compile_seconds < 60
    assert region.library_bytes == builds.library_of(compiled).stat().st_size
    assert any(kernel.name.startswith("cpp_fused") for kernel in region.kernels)
    toolchain = compiled.report.toolchain
    assert toolchain["torch"] == torch.__version__
    assert toolchain["compiler"].startswith("g++ ")
    assert toolchain["libc_floor"]
    assert compiled.report.options["always_keep_tensor_constants"] == "True"
    assert set(compiled.report.phases) == {"loading", "exporting", "compiling"}


def test_all_parameters_of_the_module_are_recorded() -> None:
    compiled, source = builds.everything()
    module = builds.open_module(source, seed=0).module
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in module.named_buffers()]
    assert [meta.name for meta in compiled.parameters] == names


def test_a_frozen_build_has_its_weights_inside_and_says_so(tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from torch._C._aoti import AOTIModelContainerRunnerCpu

    source = builds.write_source(tmp_path / "tree", builds.STATELESS)
    module = builds.open_module(source, seed=5).module
    weights = tmp_path / "w.safetensors"
    save_file(module.state_dict(), str(weights))
    events: list[Mapping[str, Any]] = []
    compiled = builds.build(
        builds.Source(source.tree, weights=(weights,)),
        tmp_path / "scratch",
        recipe=Recipe(freeze=True),
        shared=builds.shared_headers(),
        on_event=events.append,
    )
    (artifact,) = compiled.artifacts
    assert artifact.constants == ()
    assert artifact.facts["frozen"] == "true"
    tuned = [kernel for kernel in artifact.kernels if kernel.candidates >= 2 and kernel.best_us]
    assert tuned
    assert any(str(event.get("line", "")).startswith("compiler /") for event in events)
    assert not any(value.startswith("/") for value in compiled.report.toolchain.values())
    assert_tuning_was_told(events, [kernel.candidates for kernel in tuned])
    # No time at all where an earlier build on this machine has measured the same.
    assert 0 <= compiled.report.phases["tuning"] < compiled.report.regions[0].compile_seconds
    runner = AOTIModelContainerRunnerCpu(str(builds.library_of(compiled)), 1)
    x = torch.randn(3, 16)
    assert torch.allclose(runner.run([x])[0], module(x), rtol=1e-4, atol=1e-4)


def assert_tuning_was_told(events: list[Mapping[str, Any]], candidates: list[int]) -> None:
    """Each kernel by its number and candidates, in the middle of compiling its region."""
    told = [(event["phase"], event["step"]) for event in events if event.get("phase") in ("compiling", "tuning")]
    # Headers are warmed by a build of their own, which may come first.
    step = next(step for _, step in told if step.startswith("1 of 1: "))
    phases = [(phase, text) for phase, text in told if text.startswith(step)]
    expected: list[tuple[str, str]] = [("compiling", step)]
    for number, count in enumerate(candidates, start=1):
        expected += [("tuning", f"{step}; kernel {number}, {count} candidates"), ("compiling", step)]
    assert phases == expected


def test_packed_weights_in_an_unfrozen_build_fail_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache, cpu_vec_isa

    from aot.compile.artifacts import asked_names
    from aot.compile.constants import account_for, wanted_constants
    from aot.compile.export import export_point
    from aot.compile.headers import SharedCaches
    from aot.compile.inductor import compile_package
    from aot.compile.options import inductor_settings
    from aot.compile.shapes import plan_points
    from aot.compile.torch_inductor import pin_instruction_set, share_headers, use_header_directory
    from aot.errors import BackendFailed

    builds.everything()  # has made the headers
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", cpu_vec_isa.valid_vec_isa_list)
    monkeypatch.setattr(codecache, "_HEADER_DIR", codecache._HEADER_DIR)
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", codecache._HEADER_LOCK_DIR)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    share_headers(SharedCaches(builds.shared_headers()).place_for(builds.here()), tmp_path / "headers")
    use_header_directory(tmp_path / "headers")
    pin_instruction_set(builds.here().capability)
    program = builds.open_module(builds.write_source(tmp_path / "tree"), seed=0)
    (point,) = plan_points(program, Recipe(dynamic=False))
    exported = export_point(program.module, point, region="", tree=None)
    settings = inductor_settings(Recipe(), builds.here()) | {"freezing": True, "max_autotune": False}
    package = compile_package(exported, settings, region="", into=tmp_path / "out", scratch=tmp_path)
    with pytest.raises(BackendFailed, match="made from the builder's weights") as caught:
        account_for(asked_names(package.library, "cpu"), wanted_constants(exported, program.module), region="")
    assert caught.value.details["derived"]


# Three and 64 iterations that cannot be made one loop: how many of the two are parallel depends on the threads that
# are planned for.
PARALLEL = """
import torch


class Parallel(torch.nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous() * 2, torch.softmax(x, -1)


def make():
    return {"module": Parallel(), "args": (torch.randn(3, 64, 512),)}
"""


def test_a_builder_with_fewer_cores_makes_the_same_bytes(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    source = builds.write_source(tmp_path / "tree", PARALLEL)
    made = []
    try:
        for count in (1, len(cores)):
            os.sched_setaffinity(0, sorted(cores)[:count])
            compiled = builds.build(source, tmp_path / str(count), shared=builds.shared_headers())
            made.append(builds.library_of(compiled).read_bytes())
    finally:
        os.sched_setaffinity(0, cores)
    assert made[0] == made[1]
