"""A tuned unit is built untuned as well, both are timed as a pod runs them, and the faster one is recorded."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from aot.compile import contest
from aot.compile.artifacts import ArtifactMaker
from aot.compile.child import Progress
from aot.compile.constants import wanted_constants
from aot.compile.contest import Built, untuned
from aot.compile.export import export_point
from aot.compile.guards import describe
from aot.compile.inductor import LIBRARY, CompiledPackage
from aot.compile.job import CompileJob
from aot.compile.program import open_factory
from aot.compile.shapes import plan_points
from aot.compile.torch_tuning import Tuning
from aot.compile.units import Unit
from aot.errors import BackendFailed
from aot.schema.artifact import Artifact, Kernel
from aot.schema.digest import Digest
from aot.schema.measured import candidates_of, contest_of
from aot.schema.recipe import Mode, Recipe
from aot.schema.report import Phase
from tests.integration.handmade import build_library, this_profile, write_source

RECIPE = Recipe()
TUNED = Kernel(name="product", choice="template", candidates=3, best_us=1.0, next_us=2.0, reused=True)
TIMES = {"template": 1.0, "library": 2.0, "other": None}


class Maker(ArtifactMaker):
    """Exports as ever, and takes hand-written objects for what a compiler would make of the tuned and untuned unit."""

    def __init__(self, place: Path, libraries: Mapping[bool, Path | Exception], *, recipe: Recipe = RECIPE) -> None:
        source = write_source(place / "tree")
        assert source.tree is not None
        sys.modules.pop("scaled", None)  # another test's, of another tree
        try:
            program = open_factory(source.tree, source.entry)
        finally:
            sys.path.remove(str(source.tree))
        job = CompileJob(
            tree=str(source.tree),
            entry=source.entry,
            recipe=recipe,
            profile=this_profile(),
            out=str(place),
            build=str(place),
        )
        super().__init__(job, program, isa="scalar", progress=Progress(None))
        self._libraries = libraries
        self.unit = self._planner.units_at(plan_points(program, recipe)[0])[0]
        self.settings: list[Mapping[str, Any]] = []

    def _build(self, into: Path, step: str, unit: Unit, settings: Mapping[str, Any]) -> Built:
        tuned = bool(settings["max_autotune"])
        self.settings.append(settings)
        (into / "lib").mkdir(parents=True)
        library = self._libraries[tuned]
        if isinstance(library, Exception):
            raise library
        shutil.copyfile(library, into / LIBRARY)
        exported = export_point(unit.module, unit.point, region=unit.region, tree=self._tree)
        wanted = wanted_constants(exported, unit.module)
        return Built(
            exported=exported,
            package=CompiledPackage(
                directory=into,
                files=(LIBRARY,),
                kernels=(TUNED,) if tuned else (Kernel(name="product"),),
                seconds=1.0,
                tuning=Tuning(kernels=[TUNED], candidates=[TIMES]) if tuned else Tuning(),
            ),
            described=describe(exported.program, dimension_names=exported.symbols, parameters=("x",)),
            constants=tuple(one.meta for one in wanted.values()),
            wanted=wanted,
            saved=(),
        )

    def attempt(self, into: Path) -> Artifact:
        return self._attempt(into, "1 of 1", self.unit)[0]

    @property
    def warnings(self) -> str:
        return "\n".join(self._warnings)


@pytest.fixture(autouse=True)
def on_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.compile.artifacts.CONTESTED", ("cpu",))
    monkeypatch.setattr(contest, "SECONDS", 0.2)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("libraries")
    return {name: build_library(place / name, *faults) for name, faults in {"quick": (), "slow": ("SLOW",)}.items()}


def is_of(artifact: Artifact, library: Path) -> bool:
    return [file.digest for file in artifact.files] == [Digest.of(library.read_bytes())]


def test_the_untuned_build_is_kept_where_it_is_the_faster_one(tmp_path: Path, libraries: dict[str, Path]) -> None:
    maker = Maker(tmp_path, {True: libraries["slow"], False: libraries["quick"]})
    artifact = maker.attempt(tmp_path / "artifacts/0")
    assert is_of(artifact, libraries["quick"])
    assert (tmp_path / "artifacts/0" / LIBRARY).read_bytes() == libraries["quick"].read_bytes()
    assert [one.candidates for one in artifact.kernels] == [0]
    assert "us untuned: the untuned build is kept" in maker.warnings
    contest = contest_of(artifact)
    assert contest is not None and contest.kept_untuned and contest.tuned_us > contest.untuned_us
    assert contest.kernels == (TUNED,)
    assert candidates_of(structs.replace(artifact, facts=contest.facts)) == {"0": TIMES}
    assert candidates_of(artifact) == {}
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["0"]


def test_the_tuned_build_is_kept_where_it_is_the_faster_one(tmp_path: Path, libraries: dict[str, Path]) -> None:
    maker = Maker(tmp_path, {True: libraries["quick"], False: libraries["slow"]})
    artifact = maker.attempt(tmp_path / "artifacts/0")
    assert is_of(artifact, libraries["quick"]) and artifact.kernels == (TUNED,)
    assert "the tuned build is kept" in maker.warnings
    contest = contest_of(artifact)
    assert contest is not None and not contest.kept_untuned and not contest.kernels
    assert candidates_of(artifact) == {"0": TIMES}
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["0"]


def test_the_comparison_is_no_tuning_and_what_was_reused_is_said_of_either(
    tmp_path: Path, libraries: dict[str, Path]
) -> None:
    maker = Maker(tmp_path, {True: libraries["slow"], False: libraries["quick"]})
    outcome = maker.make()
    assert "1 of 1 tuned kernels as earlier builds have measured them" in outcome.report.warnings
    assert outcome.report.phases[Phase.COMPILING] > 0 and Phase.TUNING not in outcome.report.phases


def test_state_that_the_program_writes_is_not_written_by_the_comparison(
    tmp_path: Path, libraries: dict[str, Path]
) -> None:
    maker = Maker(tmp_path, {True: libraries["slow"], False: libraries["quick"]})
    maker.attempt(tmp_path / "artifacts/0")
    assert maker.unit.module.calls.item() == 0.0


@pytest.mark.parametrize("error", [BackendFailed("no memory"), KeyError("no memory")], ids=["of ours", "of torch"])
def test_a_build_without_tuning_that_fails_leaves_the_tuned_one(
    tmp_path: Path, libraries: dict[str, Path], error: Exception
) -> None:
    maker = Maker(tmp_path, {True: libraries["slow"], False: error})
    assert is_of(maker.attempt(tmp_path / "artifacts/0"), libraries["slow"])
    assert "tuned, not compared with untuned: " in maker.warnings and "no memory" in maker.warnings
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["0"]


def test_a_recipe_that_asks_for_tuning_by_name_gets_it(tmp_path: Path, libraries: dict[str, Path]) -> None:
    recipe = Recipe(options={"coordinate_descent_tuning": True})
    maker = Maker(tmp_path, {True: libraries["slow"], False: libraries["quick"]}, recipe=recipe)
    assert is_of(maker.attempt(tmp_path / "artifacts/0"), libraries["slow"])
    assert len(maker.settings) == 1


def test_a_mode_that_does_not_tune_has_nothing_to_compare() -> None:
    assert untuned({"max_autotune": False, "coordinate_descent_tuning": False}, {}) is None
    assert untuned({"max_autotune": True, "threads": 8}, {}) == {
        "max_autotune": False, "coordinate_descent_tuning": False, "threads": 8
    }  # fmt: skip
    assert Recipe().mode is Mode.MAX_AUTOTUNE
