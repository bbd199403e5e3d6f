"""Route function after route package: what the first attempt held is let go of before the program is opened again."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile import child
from aot.compile.job import CompileJob, CompileOutcome
from aot.compile.program import Example, Program
from aot.errors import SourceNotExportable
from aot.recipes.check import PACKAGE_THEN_FUNCTION
from aot.schema.recipe import Recipe
from tests.builders import a_profile, a_toolchain


def test_the_model_is_not_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.nn.Module]] = []

    class Maker:
        def __init__(self, job: CompileJob, program: Program, **options: Any) -> None:
            self.program = program

        def make(self) -> CompileOutcome:
            try:
                raise RuntimeError("of torch")
            except RuntimeError as error:
                raise SourceNotExportable("no export") from error

    def open_one(job: CompileJob) -> Program:
        module = torch.nn.Linear(2, 2).eval()
        held.append(weakref.ref(module))
        return Program(module=module, examples=(Example(args=(torch.ones(1, 2),)),))

    def make_instead(job: CompileJob, refusal: SourceNotExportable, **options: Any) -> CompileOutcome:
        assert (held[0](), refusal.message) == (None, "no export")
        return CompileOutcome()

    monkeypatch.setattr(child, "open_job", open_one)
    monkeypatch.setattr(child, "prepare_compiler", lambda job: "scalar")
    monkeypatch.setattr("aot.compile.artifacts.ArtifactMaker", Maker)
    monkeypatch.setattr("aot.compile.function.instead.make_instead", make_instead)
    profile = a_profile(toolchain=a_toolchain(torch=str(torch.__version__)))
    recipe = Recipe(routes=PACKAGE_THEN_FUNCTION)
    job = CompileJob(tree=str(tmp_path), recipe=recipe, profile=profile, out=str(tmp_path), build=str(tmp_path))
    assert child.run_job(job, child.Progress(None)) == CompileOutcome()
