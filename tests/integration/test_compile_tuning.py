"""A build is given what earlier builds of its profile have measured, and tunes only what is new to it."""

import os
from pathlib import Path

import pytest

from aot.compile.headers import SharedCaches
from aot.compile.tuned import TuningStore
from aot.schema.artifact import Kernel
from aot.schema.names import Namespace
from aot.schema.recipe import Recipe
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch

SOURCE = """
import torch

def make():
    layers = [torch.nn.Linear(64, 128), torch.nn.Linear(128, {width}), torch.nn.Linear({width}, 64)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(8, 64),)
"""


def tuned_kernels(place: Path, caches: Path, *, width: int) -> tuple[list[Kernel], tuple[str, ...]]:
    source = builds.write_source(place / "tree", SOURCE.format(width=width))
    # Constant weights are what Inductor tunes for on a CPU.
    made = builds.build(source, place / "scratch", recipe=Recipe(freeze=True), shared=caches)
    (artifact,) = made.artifacts
    return [kernel for kernel in artifact.kernels if kernel.candidates >= 2], made.report.warnings


def test_only_the_layers_that_changed_are_tuned_again(tmp_path: Path) -> None:
    builds.everything()  # has made the headers
    caches = tmp_path / "caches"
    caches.mkdir()
    headers = SharedCaches(builds.shared_headers()).place_for(builds.here())
    os.symlink(headers, caches / headers.name)

    first, _ = tuned_kernels(tmp_path / "first", caches, width=96)
    assert len(first) == 3 and not any(kernel.reused for kernel in first)
    store = TuningStore(caches, builds.here(), Namespace("default"))
    known = len(store.read())
    assert known >= 3

    second, warnings = tuned_kernels(tmp_path / "second", caches, width=160)
    assert [kernel.reused for kernel in second] == [True, False, False]
    assert (second[0].choice, second[0].best_us) == (first[0].choice, first[0].best_us)
    assert "1 of 3 tuned kernels as earlier builds have measured them" in warnings
    assert len(store.read()) >= known + 2
