"""Builds that are more than one whole program from its source: buckets, regions and stripped programs; and what holds
for all of them: the builder's place, weights and sandbox leave no trace, and any weights come out right.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.run import Compiled
from aot.runtime.load import load_bundle
from aot.schema.artifact import CoverageKind
from aot.schema.recipe import Dimension, Recipe, Regions
from tests.integration import compiled as builds
from tests.integration.test_compiled_build import loaded

pytestmark = pytest.mark.torch

Made = Callable[[], tuple[Compiled, builds.Source]]


def call_of(name: str, rows: int, *, seed: int) -> dict[str, torch.Tensor]:
    """The arguments of one call to the module of the build `name`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 16, generator=generator)
    return {"x": x} if name == "regions" else {"x": x, "mask": torch.rand(rows, 1, generator=generator)}


# buckets


def test_each_bucket_has_code_of_its_own() -> None:
    compiled, _ = builds.bucketed()
    assert [artifact.coverage.kind for artifact in compiled.artifacts] == [CoverageKind.BUCKET] * 2
    first, second = (builds.library_of(compiled, index).read_bytes() for index in (0, 1))
    assert first != second


def test_equal_constants_of_two_buckets_are_one_blob() -> None:
    compiled, _ = builds.bucketed()
    assert len(compiled.paths) == 3


def test_each_bucket_answers_for_its_size_and_eager_for_those_between(tmp_path: Path) -> None:
    model, twin = loaded(*builds.bucketed(), tmp_path)
    model.fallback = type(model.fallback)("eager")
    for rows in (2, 3, 8):
        call = call_of("buckets", rows, seed=rows)
        torch.testing.assert_close(model(**call)["y"], twin(**call)["y"])
    assert (model.counters["compiled"], model.counters["guard_misses"]) == (2, 1)
    assert "2" in model.last_miss and "8" in model.last_miss and "3" in model.last_miss


# regions and stripped programs


def test_one_artifact_serves_every_block_of_its_kind_with_the_blocks_own_weights() -> None:
    compiled, source = builds.in_regions()
    (artifact,) = compiled.artifacts
    assert (artifact.region, artifact.instances) == ("Block", ("blocks.0", "blocks.1", "blocks.2"))
    assert [meta.shape for meta in artifact.inputs] == [("batch", 16), ()]
    assert {meta.name for meta in artifact.constants} == {
        "norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias",
    }  # fmt: skip
    assert compiled.report.regions[0].instances == 3
    module = builds.open_module(source, seed=11).module
    for name in artifact.instances:
        block = module.get_submodule(name)
        container = builds.bound(compiled, block)
        for rows in (2, 8):
            x, scale = torch.randn(rows, 16), torch.randn(())
            assert torch.allclose(container.run((x, scale))[0], block(x, scale=scale), rtol=1e-4, atol=1e-5)


def test_a_build_compiles_nothing_of_what_all_builds_share() -> None:
    compiled, _ = builds.in_regions()
    library = builds.library_of(compiled)
    build = next(parent for parent in library.parents if parent.name == "out").parent / "build"
    made = sorted(path for path in (build / "headers").iterdir() if path.is_file() or path.is_symlink())
    kinds = [path.name.partition("-")[0] + path.suffix for path in made if "-" in path.name]
    assert kinds == ["interface.cpp", "interface.o", *["preprocessed.i", "preprocessed.json"] * 2]
    assert [path.name for path in made if not path.is_symlink()] == [], (
        "made by this build, not the first of the machine"
    )
    assert list(build.glob("cache/*/model.wrapper.program.cpp")), "the wrapper was compiled with its interface"


def test_a_stripped_program_records_its_graph_and_its_range() -> None:
    compiled, _ = builds.stripped()
    (artifact,) = compiled.artifacts
    assert [(one.low, one.high) for one in artifact.coverage.dimensions] == [(2, 8)]
    assert "program" in {factor.name for factor in compiled.fingerprint.factors}


# every build


@pytest.mark.parametrize(
    ("made", "code", "recipe"),
    [
        (builds.bucketed, builds.EVERYTHING, Recipe(dimensions=(Dimension(name="batch", buckets=(2, 8)),))),
        (builds.in_regions, builds.STACK, Recipe(regions=Regions.AUTO)),
    ],
    ids=["buckets", "regions"],
)
def test_the_same_source_elsewhere_with_other_weights_gives_the_same_bytes(
    tmp_path: Path, made: Made, code: str, recipe: Recipe
) -> None:
    first, _ = made()
    second = builds.build(
        builds.write_source(tmp_path / "another place with a longer name", code),
        tmp_path / "scratch" / "deeper",
        recipe=recipe,
        isolated=False,
        shared=builds.shared_headers(),
        seed=99,
    )
    assert len(second.artifacts) == len(first.artifacts)
    for index in range(len(first.artifacts)):
        assert builds.library_of(second, index).read_bytes() == builds.library_of(first, index).read_bytes()
    assert second.artifacts == first.artifacts
    assert second.fingerprint == first.fingerprint


def test_every_shared_build_is_among_those_that_get_a_second_set_of_weights() -> None:
    made_here = (value for value in vars(builds).values() if getattr(value, "__module__", "") == builds.__name__)
    shared = {value for value in made_here if hasattr(value, "cache_info")}
    assert set(builds.UNFROZEN.values()) == shared


@pytest.mark.parametrize("name", builds.UNFROZEN)
def test_two_sets_of_weights_on_one_unfrozen_build_come_out_right_over_two_calls(name: str, tmp_path: Path) -> None:
    compiled, source = builds.UNFROZEN[name]()
    directory = builds.bundle_of(compiled, tmp_path).directory
    units = sum(len(artifact.instances) for artifact in compiled.artifacts if artifact.region) or 1
    models = []
    for seed in (21, 22):
        module = builds.open_module(source, seed=seed).module
        models.append((load_bundle(directory, module, fallback="raise"), copy.deepcopy(module)))
    answers: list[list[Any]] = []
    for call in (1, 2):
        for rows in (2, 8):
            arguments = call_of(name, rows, seed=10 * call + rows)
            answers.append([model(**arguments) for model, _ in models])
            for found, (_, twin) in zip(answers[-1], models, strict=True):
                torch.testing.assert_close(found, twin(**arguments), rtol=1e-4, atol=1e-4)
    for model, twin in models:
        assert model.counters["compiled"] == 4 * units, model.reasons
        for (buffer, found), wanted in zip(model.module.named_buffers(), twin.buffers(), strict=True):
            assert torch.equal(found, wanted), buffer
    # The weights, and not those of the build, made the results: else both models would say the same.
    assert all(not torch.equal(_tensor(one), _tensor(other)) for one, other in answers)


def _tensor(answer: Any) -> torch.Tensor:
    found = answer["y"] if isinstance(answer, dict) else answer
    assert isinstance(found, torch.Tensor)
    return found
