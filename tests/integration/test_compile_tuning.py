"""A build is given what earlier builds of its profile have measured, and tunes only what is new to it."""

import os
from pathlib import Path

import pytest

from aot.compile.run import Compiled, ensure_headers
from aot.compile.tuned import TuningStore, parse_measured
from aot.schema.artifact import Kernel
from aot.schema.measured import candidates_of
from aot.schema.names import Namespace
from aot.schema.recipe import Recipe
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch

SOURCE = """
import torch

def make():
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, {width}))
    return layers.eval(), (torch.randn(8, 64),)
"""


def tuned(place: Path, caches: Path, *, width: int) -> tuple[Compiled, list[Kernel]]:
    source = builds.write_source(place / "tree", SOURCE.format(width=width))
    # Constant weights are what Inductor tunes for on a CPU.
    made = builds.build(source, place / "scratch", recipe=Recipe(freeze=True), shared=caches)
    (artifact,) = made.artifacts
    return made, [kernel for kernel in artifact.kernels if kernel.candidates >= 2]


def a_worker(directory: Path) -> TuningStore:
    """The shared caches of a worker that has the headers and has built nothing."""
    directory.mkdir()
    headers = ensure_headers(builds.shared_headers(), builds.here(), sandbox=builds.sandbox())
    os.symlink(headers, directory / headers.name)
    return TuningStore(directory, builds.here(), Namespace("default"))


def test_only_the_layers_that_changed_are_tuned_again_on_another_worker_too(tmp_path: Path) -> None:
    here, there = a_worker(tmp_path / "here"), a_worker(tmp_path / "there")
    made, first = tuned(tmp_path / "first", here.directory, width=96)
    assert len(first) == 2 and not any(kernel.reused for kernel in first)
    for kernel, times in zip(first, candidates_of(made.artifacts[0]).values(), strict=True):
        assert len(times) == kernel.candidates and next(iter(times.values())) == kernel.best_us
    assert made.measured is not None
    assert here.read() == parse_measured(made.measured.read_bytes())
    known = len(here.read())
    assert known >= 2

    there.seed(made.measured.read_bytes())
    made, second = tuned(tmp_path / "second", there.directory, width=160)
    assert [kernel.reused for kernel in second] == [True, False]
    assert (second[0].choice, second[0].best_us) == (first[0].choice, first[0].best_us)
    assert "1 of 2 tuned kernels as earlier builds have measured them" in made.report.warnings
    assert len(there.read()) >= known + 1
