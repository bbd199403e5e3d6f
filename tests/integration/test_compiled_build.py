"""A CompiledModel on a real build: pytrees, keywords, every kind of constant, buckets, and a real canary."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.compile.run import Compiled
from aot.runtime.compiled import CompiledModel
from aot.runtime.load import load_bundle
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch


def loaded(compiled: Compiled, source: Any, place: Path, *, seed: int = 5) -> tuple[CompiledModel, torch.nn.Module]:
    """The model, and an eager twin of its module."""
    module = builds.open_module(source, seed=seed).module
    twin = copy.deepcopy(module)
    return load_bundle(builds.bundle_of(compiled, place).directory, module, fallback="raise"), twin


def test_arguments_may_come_in_every_form_that_the_module_takes(tmp_path: Path) -> None:
    model, twin = loaded(*builds.everything(), tmp_path)
    for rows in (1, 3, 8):
        x, mask = torch.randn(rows, 16), torch.rand(rows, 1)
        for args, kwargs in (((x,), {"mask": mask}), ((), {"mask": mask, "x": x})):
            found, wanted = model(*args, **kwargs), twin(*args, **kwargs)
            assert found.keys() == wanted.keys() and found["rows"] == rows
            torch.testing.assert_close(found["y"], wanted["y"])
    assert model.counters["compiled"] == model.counters["calls"] == 6
    assert torch.equal(model.module.steps, twin.steps)


def test_tied_weights_that_come_apart_are_noticed_and_mended(tmp_path: Path) -> None:
    model, twin = loaded(*builds.everything(), tmp_path)
    model.fallback = type(model.fallback)("eager")
    call: dict[str, Any] = {"x": torch.randn(2, 16), "mask": torch.ones(2, 1)}
    tied = model.module.tied
    tied.weight = torch.nn.Parameter(tied.weight.clone() * 2, requires_grad=False)
    twin.tied.weight = torch.nn.Parameter(twin.tied.weight.clone() * 2, requires_grad=False)
    torch.testing.assert_close(model(**call)["y"], twin(**call)["y"])
    assert "no longer tied" in model.last_miss
    model.module.tied.weight, twin.tied.weight = model.module.first.weight, twin.first.weight
    torch.testing.assert_close(model(**call)["y"], twin(**call)["y"])
    assert (model.counters["compiled"], model.counters["eager"]) == (1, 1)
