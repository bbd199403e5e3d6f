"""A later build on a card is given what earlier ones have found, and searches for no kernel's configuration again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.compile.run import Compiled, ensure_headers
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
        self.norms = nn.ModuleList([nn.LayerNorm(512), nn.LayerNorm(512)])
        self.wide, self.narrow, self.head = nn.Linear(512, 1024), nn.Linear(1024, 512), nn.Linear(512, {width})

    def forward(self, x):
        y = x + self.narrow(torch.nn.functional.gelu(self.wide(self.norms[0](x))))
        return torch.softmax(self.head(self.norms[1](y)), -1)


def make():
    return {{"module": Net().to(torch.bfloat16), "args": (torch.randn(64, 512, dtype=torch.bfloat16),)}}
"""
# The tuned build is kept, whatever an untuned one takes.
RECIPE = Recipe(mode=Mode.MAX_AUTOTUNE, options={"coordinate_descent_tuning": True})
TAKEN = "configurations of generated kernels as earlier builds have found them: "


def build(place: Path, caches: Path, *, width: int) -> tuple[Compiled, list[str]]:
    """The build, and the kernels whose configuration was chosen in it."""
    told: list[str] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("phase") == "tuning" and "configuration of model_" in (step := str(event.get("step"))):
            told.append(step.rpartition("configuration of ")[2])

    made = builds.build(
        builds.write_source(place / "tree", SOURCE.format(width=width)),
        place / "scratch",
        profile=this_card(),
        recipe=RECIPE,
        limits=Limits(memory_bytes=32 << 30, wall_seconds=500),
        shared=caches,
        on_event=on_event,
    )
    return made, told


def taken(made: Compiled) -> int:
    return sum(int(warning.removeprefix(TAKEN)) for warning in made.report.warnings if warning.startswith(TAKEN))


def test_only_the_kernels_of_what_changed_are_searched_again(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    caches.mkdir()
    headers = ensure_headers(builds.shared_headers(), this_card(), sandbox=builds.sandbox())
    os.symlink(headers, caches / headers.name)

    made, first = build(tmp_path / "first", caches, width=1024)
    assert first and not taken(made)
    made, again = build(tmp_path / "again", caches, width=1024)
    assert not again
    assert taken(made) >= len(set(first))
    made, changed = build(tmp_path / "changed", caches, width=768)
    assert 0 < len(set(changed)) < len(set(first))
    assert taken(made) >= len(set(first)) - len(set(changed))
